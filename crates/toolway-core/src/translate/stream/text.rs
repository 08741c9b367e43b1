//! Calls and thoughts that a model writes as plain text, found while the text arrives.
//!
//! Only the forms that the upstream's configuration names are looked for, and only calls to tools that
//! were offered count. Text is held back from the first byte that could begin a marker, and goes on
//! unchanged as soon as it turns out to be none.

use super::{
    Known, Settings, TextCalls,
    arguments::Scan,
    forms::{self, TextCall},
    think::{Think, safe_length},
};

/// What a piece of text turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextPiece {
    /// Text for the client.
    Text(String),
    /// Thoughts.
    Reasoning(String),
    /// A call to an offered tool.
    Call {
        /// The name, mended.
        name: String,
        /// The arguments in JSON.
        arguments: String,
    },
}

/// A kind of block that may be a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallMarkup {
    ToolCall,
    Function,
    Fence,
    PythonTag,
    Mistral,
    Header,
}

/// What the text is in the middle of.
#[derive(Clone, Debug)]
enum TextSection {
    Text,
    /// A block that may be a call; it is held from its marker on.
    Block(CallMarkup),
    /// A fenced block that is no call, up to its end.
    Code,
    /// A Harmony message for a tool; the header is held too.
    Message {
        header: usize,
        name: String,
    },
    /// A Harmony message for people.
    Channel {
        thoughts: bool,
    },
}

const HARMONY_ENDS: [&str; 5] = [
    "<|call|>",
    "<|end|>",
    "<|return|>",
    "<|start|>",
    "<|channel|>",
];
const TURN_ENDS: [&str; 2] = ["<|eom_id|>", "<|eot_id|>"];
/// Longest Harmony header and longest first line of a fence that are waited for, in bytes.
const MAX_HEADER: usize = 300;
/// How much of a text is read at once, in bytes.
const PIECE: usize = 4096;

/// Splits text into [`TextPiece`]s.
#[derive(Debug)]
pub(crate) struct TextFilter {
    think: Option<Think>,
    markers: Vec<(&'static str, CallMarkup)>,
    place: TextSection,
    held: String,
    /// How much of `held` was searched before and needs no second look.
    searched: usize,
    scan: Scan,
}

impl TextFilter {
    /// A filter for what the settings name.
    pub(crate) fn new(settings: &Settings) -> TextFilter {
        TextFilter {
            think: settings.think_tags.then(Think::new),
            markers: markers(settings.text_calls),
            place: TextSection::Text,
            held: String::new(),
            searched: 0,
            scan: Scan::default(),
        }
    }

    /// Nothing is looked for.
    pub(crate) fn is_off(&self) -> bool {
        self.think.is_none() && self.markers.is_empty()
    }

    /// This text, coming next, is text and nothing else.
    pub(crate) fn lets_through(&self, text: &str) -> bool {
        let plain = matches!(self.place, TextSection::Text) && self.held.is_empty();
        self.is_off()
            || text.is_empty()
            || plain
                && self.think.as_ref().is_none_or(Think::is_in_text)
                && memchr::memchr3(b'<', b'[', b'`', text.as_bytes()).is_none()
    }

    /// How many bytes are held back.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Takes the next text.
    pub(crate) fn push(&mut self, text: &str, known: &dyn Known) -> Vec<TextPiece> {
        let mut pieces = Vec::new();
        match self.think.take() {
            None => self.read(text, known, &mut pieces),
            Some(mut think) => {
                think.push(text, |text, thought| {
                    self.sort(text, thought, known, &mut pieces);
                });
                self.think = Some(think);
            }
        }
        pieces
    }

    /// Takes the end of the text: what was held back is a call after all, or text.
    pub(crate) fn finish(&mut self, known: &dyn Known) -> Vec<TextPiece> {
        let mut pieces = Vec::new();
        if let Some(mut think) = self.think.take() {
            think.finish(|text, thought| self.sort(text, thought, known, &mut pieces));
        }
        let end = self.held.len();
        match self.place.clone() {
            TextSection::Block(form) => self.settle(form, end, known, &mut pieces),
            TextSection::Message { header, name } => {
                // Nothing is held when the end was taken before: a stream may end, and break off after that.
                let body = self.held.get(header..).unwrap_or_default();
                let calls = forms::in_harmony(&name, body, known);
                self.say(calls, end, &mut pieces);
            }
            TextSection::Text | TextSection::Code | TextSection::Channel { .. } => {
                self.say(None, end, &mut pieces);
            }
        }
        self.place = TextSection::Text;
        pieces
    }

    fn sort(&mut self, text: &str, thought: bool, known: &dyn Known, pieces: &mut Vec<TextPiece>) {
        if thought {
            add(pieces, text, true);
        } else {
            self.read(text, known, pieces);
        }
    }

    fn read(&mut self, text: &str, known: &dyn Known, pieces: &mut Vec<TextPiece>) {
        if self.markers.is_empty() {
            return add(pieces, text, false);
        }
        // Piece by piece, so that taking something out of the front never moves much.
        let mut rest = text;
        while !rest.is_empty() {
            let cut = (0..=rest.len().min(PIECE))
                .rev()
                .find(|&at| rest.is_char_boundary(at));
            let (piece, after) = rest.split_at(cut.unwrap_or(rest.len()));
            self.held.push_str(piece);
            self.advance(known, pieces);
            rest = after;
        }
    }

    /// Reads what is held as far as it can be read.
    fn advance(&mut self, known: &dyn Known, pieces: &mut Vec<TextPiece>) {
        while !self.held.is_empty() {
            let goes_on = match self.place.clone() {
                TextSection::Text => self.find_marker(pieces),
                TextSection::Block(CallMarkup::Header) => self.read_header(known, pieces),
                TextSection::Block(form) => match self.block_end(form) {
                    BlockEnd::At(end) => {
                        self.settle(form, end, known, pieces);
                        true
                    }
                    BlockEnd::NoCall => {
                        let code = form == CallMarkup::Fence;
                        let marker = self.marker_length(form);
                        self.say(None, marker, pieces);
                        self.place = if code {
                            TextSection::Code
                        } else {
                            TextSection::Text
                        };
                        true
                    }
                    BlockEnd::Waits => false,
                },
                TextSection::Code => self.read_code(pieces),
                TextSection::Message { header, name } => {
                    self.read_message(header, &name, known, pieces)
                }
                TextSection::Channel { thoughts } => self.read_channel(thoughts, pieces),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Says the text before the first marker, and holds what could be one. True: a block begins.
    fn find_marker(&mut self, pieces: &mut Vec<TextPiece>) -> bool {
        let found = self
            .markers
            .iter()
            .filter_map(|&(marker, form)| Some((self.held.find(marker)?, form)));
        if let Some((at, form)) = found.min_by_key(|&(at, _)| at) {
            self.say(None, at, pieces);
            self.place = TextSection::Block(form);
            return true;
        }
        let markers: Vec<&str> = self.markers.iter().map(|&(marker, _)| marker).collect();
        let safe = safe_length(&self.held, &markers);
        self.say(None, safe, pieces);
        false
    }

    fn marker_length(&self, form: CallMarkup) -> usize {
        let marker = self
            .markers
            .iter()
            .find(|&&(marker, of)| of == form && self.held.starts_with(marker));
        marker.map_or(0, |(marker, _)| marker.len())
    }

    /// Looks for the end of the block that `held` begins with.
    fn block_end(&mut self, form: CallMarkup) -> BlockEnd {
        match form {
            CallMarkup::ToolCall => self.find_end(&["</tool_call>"], 0),
            CallMarkup::Function => self.find_end(&["</function>"], 0),
            CallMarkup::PythonTag => self.find_end(&TURN_ENDS, 0),
            CallMarkup::Fence => self.fence_end(),
            CallMarkup::Mistral => self.mistral_end(),
            CallMarkup::Header => BlockEnd::Waits,
        }
    }

    /// The first of some ends at or after `from`, looking at every byte once.
    fn find_end(&mut self, ends: &[&str], from: usize) -> BlockEnd {
        let longest = ends.iter().map(|end| end.len()).max().unwrap_or(1);
        let mut start = self.searched.max(from).min(self.held.len());
        while !self.held.is_char_boundary(start) {
            start -= 1;
        }
        let found = ends
            .iter()
            .filter_map(|end| Some((self.held[start..].find(end)?, end.len())));
        match found.min() {
            Some((at, length)) => BlockEnd::At(start + at + length),
            None => {
                self.searched = self.held.len().saturating_sub(longest - 1);
                BlockEnd::Waits
            }
        }
    }

    /// The end of a fenced block, if its first line and first character are those of a call.
    fn fence_end(&mut self) -> BlockEnd {
        let after = &self.held["```".len()..];
        let Some((line, body)) = after.split_once('\n') else {
            let possible = FENCES.iter().any(|fence| fence.starts_with(after.trim()));
            return waits_if(possible && self.held.len() < MAX_HEADER);
        };
        let start = self.held.len() - body.len();
        let begins = self.held.len() - body.trim_start().len();
        if !FENCES.contains(&line.trim()) || begins >= MAX_HEADER {
            return BlockEnd::NoCall;
        }
        match self.held.as_bytes().get(begins) {
            None => BlockEnd::Waits,
            Some(b'{' | b'[') => self.find_end(&["\n```"], start),
            Some(_) => BlockEnd::NoCall,
        }
    }

    /// The end of the JSON after `[TOOL_CALLS]`, with or without a name before it.
    fn mistral_end(&mut self) -> BlockEnd {
        let start = "[TOOL_CALLS]".len();
        if self.searched < start {
            let body = self.held[start..].trim_start();
            let list = body.starts_with('[');
            let name = if list {
                ""
            } else {
                body.split('{').next().unwrap_or(body)
            };
            let opens = self.held.len() - body.len() + name.len();
            if opens >= MAX_HEADER || name.contains(char::is_whitespace) {
                return BlockEnd::NoCall;
            }
            if opens == self.held.len() {
                return BlockEnd::Waits;
            }
            self.searched = opens;
            self.scan = Scan::default();
        }
        let from = self.searched;
        self.searched = self.held.len();
        match self.scan.read(&self.held[from..]) {
            Some(length) => BlockEnd::At(from + length),
            None => BlockEnd::Waits,
        }
    }

    /// Ends a block: it is one or several calls, or text.
    fn settle(
        &mut self,
        form: CallMarkup,
        end: usize,
        known: &dyn Known,
        pieces: &mut Vec<TextPiece>,
    ) {
        let block = &self.held[..end];
        let calls = match form {
            CallMarkup::ToolCall | CallMarkup::Function => forms::in_tags(block, known),
            CallMarkup::Fence => forms::in_fence(block, known),
            CallMarkup::PythonTag => forms::in_python_tag(block, known),
            CallMarkup::Mistral => forms::in_mistral(block, known),
            CallMarkup::Header => None,
        };
        self.say(calls, end, pieces);
        self.place = TextSection::Text;
    }

    /// Reads a Harmony header: whom the message is for.
    fn read_header(&mut self, known: &dyn Known, pieces: &mut Vec<TextPiece>) -> bool {
        const END: &str = "<|message|>";
        let found = self.held.find(END);
        if found.is_none() && self.held.len() < MAX_HEADER {
            return false;
        }
        let Some(at) = found.filter(|&at| at + END.len() <= MAX_HEADER) else {
            let marker = self.marker_length(CallMarkup::Header);
            self.say(None, marker, pieces);
            self.place = TextSection::Text;
            return true;
        };
        let header = &self.held[..at];
        let channel = header
            .split_once("<|channel|>")
            .map_or("", |(_, rest)| rest.trim_start());
        let recipient = header.split_once("to=").map(|(_, rest)| {
            super::mend_name(rest.split_whitespace().next().unwrap_or_default()).to_owned()
        });
        let place = match recipient {
            Some(name) if known.is_offered(&name) => TextSection::Message {
                header: at + END.len(),
                name,
            },
            Some(_) => TextSection::Text,
            None if channel.starts_with("analysis") => TextSection::Channel { thoughts: true },
            None if channel.starts_with("final") || channel.starts_with("commentary") => {
                TextSection::Channel { thoughts: false }
            }
            None => TextSection::Text,
        };
        match place {
            TextSection::Text => self.say(None, at + END.len(), pieces),
            TextSection::Channel { .. } => self.drop(at + END.len()),
            _ => {}
        }
        self.place = place;
        true
    }

    fn read_message(
        &mut self,
        header: usize,
        name: &str,
        known: &dyn Known,
        pieces: &mut Vec<TextPiece>,
    ) -> bool {
        let BlockEnd::At(end) = self.find_end(&HARMONY_ENDS, header) else {
            return false;
        };
        let (body, token) = body_and_token(&self.held[..end]);
        let calls = forms::in_harmony(name, &self.held[header..body], known);
        let next_begins = matches!(token, "<|start|>" | "<|channel|>");
        self.say(calls, if next_begins { body } else { end }, pieces);
        self.place = TextSection::Text;
        true
    }

    fn read_channel(&mut self, thoughts: bool, pieces: &mut Vec<TextPiece>) -> bool {
        let BlockEnd::At(end) = self.find_end(&HARMONY_ENDS, 0) else {
            let safe = safe_length(&self.held, &HARMONY_ENDS);
            add(pieces, &self.held[..safe], thoughts);
            self.drop(safe);
            return false;
        };
        let (body, token) = body_and_token(&self.held[..end]);
        let next_begins = matches!(token, "<|start|>" | "<|channel|>");
        add(pieces, &self.held[..body], thoughts);
        self.drop(if next_begins { body } else { end });
        self.place = TextSection::Text;
        true
    }

    fn read_code(&mut self, pieces: &mut Vec<TextPiece>) -> bool {
        let BlockEnd::At(end) = self.find_end(&["```"], 0) else {
            let safe = safe_length(&self.held, &["```"]);
            self.say(None, safe, pieces);
            return false;
        };
        self.say(None, end, pieces);
        self.place = TextSection::Text;
        true
    }

    /// Gives out the beginning of what is held: as calls, or as text.
    fn say(&mut self, calls: Option<Vec<TextCall>>, end: usize, pieces: &mut Vec<TextPiece>) {
        match calls {
            Some(calls) => pieces.extend(
                calls
                    .into_iter()
                    .map(|(name, arguments)| TextPiece::Call { name, arguments }),
            ),
            None => {
                let thoughts = matches!(self.place, TextSection::Channel { thoughts: true });
                add(pieces, &self.held[..end], thoughts);
            }
        }
        self.drop(end);
    }

    fn drop(&mut self, end: usize) {
        self.held.drain(..end);
        self.searched = 0;
    }
}

/// The first lines that a fenced block with a call may have.
const FENCES: [&str; 4] = ["json", "", "tool_call", "tool_calls"];

/// Whether a block has ended.
enum BlockEnd {
    At(usize),
    /// It can no longer be a call.
    NoCall,
    Waits,
}

fn waits_if(possible: bool) -> BlockEnd {
    if possible {
        BlockEnd::Waits
    } else {
        BlockEnd::NoCall
    }
}

fn markers(forms: TextCalls) -> Vec<(&'static str, CallMarkup)> {
    let all = [
        (forms.tool_call_tags, "<tool_call>", CallMarkup::ToolCall),
        (forms.tool_call_tags, "<function=", CallMarkup::Function),
        (forms.fenced_json, "```", CallMarkup::Fence),
        (forms.python_tag, "<|python_tag|>", CallMarkup::PythonTag),
        (forms.mistral, "[TOOL_CALLS]", CallMarkup::Mistral),
        (forms.harmony, "<|start|>", CallMarkup::Header),
        (forms.harmony, "<|channel|>", CallMarkup::Header),
    ];
    all.into_iter()
        .filter(|(on, ..)| *on)
        .map(|(_, marker, form)| (marker, form))
        .collect()
}

/// Where the token begins that a Harmony message ends with, and which it is.
fn body_and_token(message: &str) -> (usize, &str) {
    let body = message.rfind("<|").unwrap_or(message.len());
    (body, &message[body..])
}

/// Adds to the last piece if it is of the same kind.
fn add(pieces: &mut Vec<TextPiece>, text: &str, thoughts: bool) {
    match (pieces.last_mut(), thoughts) {
        _ if text.is_empty() => {}
        (Some(TextPiece::Text(known)), false) | (Some(TextPiece::Reasoning(known)), true) => {
            known.push_str(text);
        }
        (_, false) => pieces.push(TextPiece::Text(text.to_owned())),
        (_, true) => pieces.push(TextPiece::Reasoning(text.to_owned())),
    }
}
