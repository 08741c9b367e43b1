"""What is known to fail, and why."""

from fnmatch import fnmatchcase


class Expected:
    """The lines of expected.txt, and which of them were needed."""

    def __init__(self, entries):
        self.entries, self.used = entries, set()

    @classmethod
    def read(cls, path):
        """Each line that is not empty and no comment is `RUN VERSION SCENARIO CHECK REASON`; the first four may have `*`."""
        entries = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split(maxsplit=4)
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 5:
                raise ValueError(f"{path.name}:{number}: a run, a version, a scenario, a check and a reason are needed")
            entries.append((words[:4], words[4]))
        return cls(entries)

    def reason(self, *place):
        """Why it may fail in this run, version, scenario and check; None if it may not."""
        for index, (patterns, reason) in enumerate(self.entries):
            if all(map(fnmatchcase, place, patterns)):
                self.used.add(index)
                return reason
        return None

    def unused(self):
        return [" ".join(patterns) for index, (patterns, _) in enumerate(self.entries) if index not in self.used]
