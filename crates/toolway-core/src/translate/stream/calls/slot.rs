//! One call while it arrives: what belongs to it, whose it is, and what of it may be shown.

use serde_json::{Value, json};

use super::{Fragment, ShownCalls};
use crate::translate::{
    ids::marked,
    stream::{CallKind, Known, Owner, arguments::Arguments, mend_name},
};
use toolway_protocol::tool::{JsonObject, ToolCall};

/// Longest name that is put together; the rest is dropped, and no tool has such a name.
const MAX_NAME_BYTES: usize = 1024;

/// One call while it arrives.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) index: Option<u64>,
    /// The id as the model gave it; never empty.
    pub(super) id: Option<String>,
    /// The name so far, as the model wrote it.
    pub(super) name: String,
    /// `name` was given, it seems, to its end.
    pub(super) owner: Option<Owner>,
    pub(super) kind: CallKind,
    pub(super) arguments: Arguments,
    /// The `arguments` member was there, be it empty.
    arguments_seen: bool,
    pub(super) extra: JsonObject,
    /// Members of `extra` that were not shown yet.
    new_extra: JsonObject,
    /// [`Calls::newly_complete`](super::Calls::newly_complete) has given it out.
    pub(super) is_told_complete: bool,
    /// Where it stands in the answer, once it was shown to the client; and under which id.
    pub(super) shown: Option<(usize, String)>,
}

impl Slot {
    pub(super) fn new(index: Option<u64>) -> Slot {
        Slot {
            index,
            id: None,
            name: String::new(),
            owner: None,
            kind: CallKind::Function,
            arguments: Arguments::default(),
            arguments_seen: false,
            extra: JsonObject::new(),
            new_extra: JsonObject::new(),
            is_told_complete: false,
            shown: None,
        }
    }

    /// A fragment that points here by index, id or place belongs to this call and does not begin another.
    /// `touched`: this call had a fragment in the same delta.
    pub(super) fn is_continued_by(
        &self,
        fragment: &Fragment,
        touched: bool,
        known: &dyn Known,
    ) -> bool {
        let Some(name) = &fragment.name else {
            return true;
        };
        if touched {
            return false;
        }
        let other_id = fragment.id.is_some() && self.id.is_some() && fragment.id != self.id;
        if self.name.is_empty() {
            return !other_id;
        }
        if !self.arguments.has_begun() {
            return !other_id && self.is_named_on(name, fragment.index.is_some(), known);
        }
        if !self.arguments.is_whole() {
            return mend_name(name) == mend_name(&self.name);
        }
        let again = fragment
            .says()
            .is_none_or(|a| self.arguments.is_placeholder() || self.arguments.is_repeated_by(a));
        !other_id && again && mend_name(name) == mend_name(&self.name)
    }

    /// `name` goes on with this call's name, or repeats it, and is not that of another call. `indexed`: the
    /// index says so, which is only doubted where both are names of their own.
    fn is_named_on(&self, name: &str, indexed: bool, known: &dyn Known) -> bool {
        let (own, other) = (mend_name(&self.name), mend_name(name));
        let joined = format!("{}{name}", self.name);
        let both_offered = known.is_offered(own) && known.is_offered(other);
        own == other
            || known.is_offered(mend_name(&joined))
            || other.starts_with(own) && known.is_offered(other)
            || indexed && !both_offered
    }

    pub(super) fn push(&mut self, fragment: Fragment, known: &dyn Known) {
        self.index = self.index.or(fragment.index);
        if self.id.is_none() {
            self.id = fragment.id;
        }
        if let Some(kind) = fragment.kind.filter(|_| self.shown.is_none()) {
            self.kind = kind;
        }
        if let Some(name) = fragment.name {
            self.push_name(&name, known);
        }
        if let Some(arguments) = fragment.arguments {
            self.arguments_seen = true;
            self.arguments.push(&arguments);
        }
        for (key, value) in fragment.extra {
            self.new_extra.insert(key.clone(), value.clone());
            self.extra.insert(key, value);
        }
    }

    /// Joins a name that comes in pieces, is repeated, or is longer every time.
    fn push_name(&mut self, name: &str, known: &dyn Known) {
        let settled = self.arguments.has_begun() && !self.name.is_empty();
        if settled || self.shown.is_some() || self.name.len() + name.len() > MAX_NAME_BYTES {
            return;
        }
        let joined = format!("{}{name}", self.name);
        let whole = known.is_offered(mend_name(&self.name));
        let repeated = name == self.name && (whole || !known.is_offered(&joined));
        if repeated {
            return;
        }
        let longer = name.starts_with(&self.name) && !known.is_offered(mend_name(&joined));
        self.name = if longer { name.to_owned() } else { joined };
        self.owner = None;
    }

    /// Decides whose call it is, once the name must be whole: it is one that is offered, arguments have
    /// begun, or (`over`) nothing of it can come any more.
    pub(super) fn decide(&mut self, over: bool, known: &dyn Known) {
        let name = mend_name(&self.name);
        if self.owner.is_some() || name.is_empty() {
            return;
        }
        let offered = self.arguments_seen && known.is_offered(name);
        if over || offered || self.arguments.has_begun() {
            if let Some(offered) = known.offered_name(name) {
                self.name = offered;
            }
            self.owner = Some(known.owner(mend_name(&self.name)));
        }
    }

    /// The call, if it has an id and its arguments are a whole value and not the `{}` which some upstreams send before
    /// the real one.
    pub(super) fn complete(&self) -> Option<ToolCall> {
        let is_complete = self.arguments.is_whole()
            && !self.arguments.is_placeholder()
            && self.kind == CallKind::Function;
        let id = self.id.clone().filter(|_| is_complete)?;
        let mut arguments = self.arguments.clone();
        arguments.close();
        Some(ToolCall {
            id,
            name: mend_name(&self.name).to_owned(),
            arguments: arguments.into_text(),
        })
    }

    /// The next delta for the client, if the call is its own.
    pub(super) fn show(&mut self, known: &dyn Known, answer: &mut ShownCalls) -> Option<Value> {
        if self.owner != Some(Owner::Client) {
            return None;
        }
        let text = self.arguments.take().to_owned();
        self.delta(&text, known, answer)
    }

    pub(super) fn show_rest(
        &mut self,
        known: &dyn Known,
        answer: &mut ShownCalls,
    ) -> Option<Value> {
        if self.owner != Some(Owner::Client) {
            return None;
        }
        let text = self.arguments.take_rest().to_owned();
        self.delta(&text, known, answer)
    }

    fn delta(&mut self, text: &str, known: &dyn Known, answer: &mut ShownCalls) -> Option<Value> {
        let extra = std::mem::take(&mut self.new_extra);
        let (body, input) = self.kind.members();
        let mut delta = match &self.shown {
            Some(_) if text.is_empty() && extra.is_empty() => return None,
            Some((index, _)) => json!({"index": index, body: {input: text}}),
            None => {
                let (index, id) = self.shown.insert(answer.add(self.id.clone(), known));
                let is_marked = answer.marks && !known.shows_gateway_calls();
                let id = if is_marked { marked(id) } else { id.clone() };
                let name = mend_name(&self.name);
                json!({
                    "index": index,
                    "id": id,
                    "type": body,
                    body: {"name": name, input: text},
                })
            }
        };
        if let Some(delta) = delta.as_object_mut() {
            add_extra(delta, extra);
        }
        Some(delta)
    }
}

/// Puts the unknown members of a call where they stood.
pub(crate) fn add_extra(call: &mut JsonObject, extra: JsonObject) {
    for (key, value) in extra {
        match (call.get_mut(&key), value) {
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
            (Some(_), _) => {}
            (None, value) => {
                call.insert(key, value);
            }
        }
    }
}
