//! What one endpoint shows of all there is.

/// What one endpoint shows of all there is.
#[derive(Debug)]
pub struct View(());

impl View {
    /// Everything, under prefixed names.
    pub(super) fn everything() -> View {
        View(())
    }
}
