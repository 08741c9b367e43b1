//! An answer that is only mended.

use super::{
    ChatStream, Known, Round, StreamError, glance::Glance, round::Reading, write_event, write_raw,
};
use crate::{openai::FinishReason, sse, tool::JsonObject};

#[derive(Debug, Default)]
pub(crate) struct Pass {}

impl ChatStream {
    pub(super) fn pass_on(
        &mut self,
        _glance: &Glance<'_>,
        event: &sse::Event,
        out: &mut Vec<u8>,
    ) -> bool {
        write_raw(event.raw(), out);
        true
    }

    pub(super) fn pass_chunk(
        &mut self,
        chunk: JsonObject,
        _event: &sse::Event,
        _known: &dyn Known,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamError> {
        write_event(&chunk.into(), out);
        Ok(())
    }

    pub(super) fn pass_done(&mut self, _event: &sse::Event, _out: &mut Vec<u8>) {}

    pub(super) fn pass_end(
        &mut self,
        round: Reading,
        _known: &dyn Known,
        _out: &mut Vec<u8>,
    ) -> Result<Round, StreamError> {
        round.into_round(&mut self.shown.ids)
    }

    pub(super) fn pass_finish(&mut self, _reason: FinishReason, _out: &mut Vec<u8>) {}
}
