"""What `scripts/interop` is made of: install, start, drive, judge. Standard library only."""
