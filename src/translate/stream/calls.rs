//! The calls of one round, put together from their deltas.
//!
//! By the contract `index` says which call a delta belongs to. Where it is missing, always 0, or reused,
//! the id, the name and the state of the arguments say it: [`Calls::slot_for`] is the whole rule.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{
    Call, CallKind, Known, MAX_CALLS, Owner, StreamError, arguments::Arguments, name::mend_name,
};
use crate::{
    tool::{JsonObject, ToolCall},
    translate::ids::Ids,
};

/// Longest name that is put together; more of it is dropped, and nobody has such a tool.
const MAX_NAME_BYTES: usize = 1024;

/// The calls of one round, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    /// The call that the last delta belonged to.
    current: Option<usize>,
}

/// One call while it arrives.
#[derive(Debug)]
struct Slot {
    index: Option<u64>,
    /// The id as the model gave it; never empty.
    id: Option<String>,
    /// The name so far, as the model wrote it.
    name: String,
    /// `name` was given, it seems, to its end.
    owner: Option<Owner>,
    kind: CallKind,
    arguments: Arguments,
    /// The `arguments` member was there, be it empty.
    arguments_seen: bool,
    extra: JsonObject,
    /// Members of `extra` that were not shown yet.
    new_extra: JsonObject,
    /// Where it stands in the answer, once it was shown to the client; and under which id.
    shown: Option<(usize, String)>,
}

/// Where a fragment went.
#[derive(Debug)]
pub(crate) struct Pushed {
    /// The place of its call among the calls.
    pub(crate) place: usize,
    /// What it added to the name of the call.
    pub(crate) name: String,
}

/// One element of `tool_calls`, taken apart.
#[derive(Debug, Default)]
pub(crate) struct Fragment {
    index: Option<u64>,
    id: Option<String>,
    name: Option<String>,
    kind: Option<CallKind>,
    arguments: Option<Value>,
    extra: JsonObject,
}

impl Fragment {
    /// Reads an element of `tool_calls` as loosely as it can be read. `None` if there is nothing in it.
    pub(crate) fn read(value: Value) -> Option<Fragment> {
        let Value::Object(mut element) = value else {
            return None;
        };
        let mut fragment = Fragment {
            index: element.shift_remove("index").as_ref().and_then(number),
            id: element.shift_remove("id").and_then(text_or_number),
            ..Fragment::default()
        };
        let kind = element.shift_remove("type");
        let (function, custom) = (
            element.shift_remove("function"),
            element.shift_remove("custom"),
        );
        let body = match (function, custom) {
            (Some(Value::Object(body)), _) => {
                fragment.kind = Some(CallKind::Function);
                Some(body)
            }
            (_, Some(Value::Object(body))) => {
                fragment.kind = Some(CallKind::Custom);
                Some(body)
            }
            _ => None,
        };
        if kind.is_some_and(|kind| kind == "custom") {
            fragment.kind = Some(CallKind::Custom);
        }
        match body {
            Some(mut body) => {
                fragment.take_body(&mut body);
                if !body.is_empty() {
                    let place = fragment.kind.unwrap_or_default().members().0;
                    fragment.extra.insert(place.to_owned(), Value::Object(body));
                }
            }
            // Name and arguments beside the id, without the object around them.
            None => fragment.take_body(&mut element),
        }
        fragment
            .extra
            .extend(element.into_iter().filter(|(_, value)| !value.is_null()));
        Some(fragment)
    }

    /// Reads the deprecated `function_call`.
    pub(crate) fn read_legacy(value: Value) -> Option<Fragment> {
        let Value::Object(mut body) = value else {
            return None;
        };
        let mut fragment = Fragment {
            kind: Some(CallKind::Function),
            ..Fragment::default()
        };
        fragment.take_body(&mut body);
        fragment.extra = body;
        Some(fragment)
    }

    /// A whole call.
    pub(crate) fn whole(name: String, arguments: String) -> Fragment {
        Fragment {
            name: Some(name),
            arguments: Some(Value::String(arguments)),
            ..Fragment::default()
        }
    }

    /// The fragment at a place of a whole message, where every element is a call of its own.
    pub(crate) fn at(mut self, place: usize) -> Fragment {
        self.index = Some(place as u64);
        self
    }

    fn take_body(&mut self, body: &mut JsonObject) {
        self.name = match body.shift_remove("name") {
            Some(Value::String(name)) if !name.is_empty() => Some(name),
            _ => None,
        };
        self.arguments = body
            .shift_remove("arguments")
            .or_else(|| body.shift_remove("input"));
    }

    /// Nothing is said but the place.
    fn is_empty(&self) -> bool {
        self.id.is_none()
            && self.name.is_none()
            && self.extra.is_empty()
            && self
                .arguments
                .as_ref()
                .is_none_or(|a| a.is_null() || a == "")
    }

    /// Arguments that are not nothing.
    fn says(&self) -> Option<&Value> {
        self.arguments.as_ref().filter(|a| !a.is_null() && *a != "")
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number
                .as_f64()
                .filter(|f| f.fract() == 0.0 && (0.0..1e9).contains(f));
            float.map(|f| f as u64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn text_or_number(value: Value) -> Option<String> {
    match value {
        Value::String(text) => (!text.trim().is_empty()).then_some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl Calls {
    /// Takes the elements of one delta, in order.
    pub(crate) fn push(
        &mut self,
        fragments: Vec<Fragment>,
        known: &dyn Known,
    ) -> Result<(), StreamError> {
        let mut touched = Vec::new();
        for fragment in fragments {
            self.push_one(fragment, &mut touched, known)?;
        }
        Ok(())
    }

    /// Takes one element, and tells which call it went to; `None` if it says nothing. `touched` are the
    /// calls that other elements of the same delta went to.
    pub(crate) fn push_one(
        &mut self,
        fragment: Fragment,
        touched: &mut Vec<usize>,
        known: &dyn Known,
    ) -> Result<Option<Pushed>, StreamError> {
        let place = self.slot_for(&fragment, touched, known);
        if place == self.slots.len() {
            if fragment.is_empty() {
                return Ok(None);
            }
            if place >= MAX_CALLS {
                return Err(StreamError::TooManyCalls);
            }
            self.slots.push(Slot::new(fragment.index));
        }
        let slot = &mut self.slots[place];
        let named = slot.name.len();
        slot.push(fragment, known);
        self.current = Some(place);
        touched.push(place);
        let name = slot.name.get(named..).unwrap_or_default().to_owned();
        Ok(Some(Pushed { place, name }))
    }

    /// Which call a fragment belongs to; one past the last for a new one.
    fn slot_for(&self, fragment: &Fragment, touched: &[usize], known: &dyn Known) -> usize {
        let new = self.slots.len();
        let by_id = |id: &str| self.slots.iter().rposition(|s| s.id.as_deref() == Some(id));
        let found = match (fragment.index, &fragment.id) {
            // The contract.
            (Some(index), id) => {
                let at = self
                    .slots
                    .iter()
                    .rposition(|slot| slot.index == Some(index));
                match (at, id.as_deref().and_then(by_id)) {
                    // The index is used again for another call, which has its turn to be continued.
                    (Some(_), Some(named)) if self.slots[named].index == Some(index) => Some(named),
                    // Calls that began without an index.
                    (None, Some(named)) if self.slots[named].index.is_none() => Some(named),
                    (at, _) => at,
                }
            }
            (None, Some(id)) => by_id(id).or_else(|| {
                // An id that comes late, or that is another one in every delta.
                let current = self.current.filter(|_| fragment.name.is_none())?;
                let slot = &self.slots[current];
                (slot.id.is_none() || !slot.arguments.is_whole()).then_some(current)
            }),
            (None, None) => self.current,
        };
        match found {
            Some(at) if self.slots[at].is_continued_by(fragment, touched.contains(&at), known) => {
                at
            }
            _ => new,
        }
    }

    /// No call has begun.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// There are calls, and the arguments of all of them are whole.
    pub(crate) fn are_whole(&self) -> bool {
        !self.is_empty()
            && self
                .slots
                .iter()
                .all(|s| s.arguments.is_whole() && !mend_name(&s.name).is_empty())
    }

    /// The arguments of a call are `{}` so far.
    pub(crate) fn is_placeholder(&self, place: usize) -> bool {
        self.slots
            .get(place)
            .is_some_and(|slot| slot.arguments.is_placeholder())
    }

    /// The arguments of a call were `{}`, and others came after that.
    pub(crate) fn was_placeholder(&self, place: usize) -> bool {
        self.slots
            .get(place)
            .is_some_and(|slot| slot.arguments.was_placeholder())
    }

    /// How many bytes of arguments and names are held.
    pub(crate) fn len(&self) -> usize {
        self.slots
            .iter()
            .map(|slot| slot.arguments.len() + slot.name.len())
            .sum()
    }

    /// The deltas of the client's own calls that can be shown by now, numbered on from `shown`.
    pub(crate) fn show(&mut self, known: &dyn Known, answer: &mut Shown) -> Vec<Value> {
        let last = self.slots.len().saturating_sub(1);
        let mut deltas = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            slot.decide(at < last, known);
            deltas.extend(slot.show(known, answer));
        }
        deltas
    }

    /// Ends the round: decides what was left open, and shows the client what was held back.
    pub(crate) fn close(&mut self, known: &dyn Known, answer: &mut Shown) -> Vec<Value> {
        for slot in &mut self.slots {
            slot.decide(true, known);
            slot.arguments.close();
        }
        self.slots
            .iter_mut()
            .flat_map(|slot| slot.show_rest(known, answer))
            .collect()
    }

    /// Forgets calls that nobody could make, after they went out as they came.
    pub(crate) fn drop_nameless(&mut self) {
        self.slots.retain(|slot| !mend_name(&slot.name).is_empty());
    }

    /// Gives the calls the ids under which the client knows them.
    pub(crate) fn set_ids(&mut self, ids: &[String]) {
        for (index, (slot, id)) in self.slots.iter_mut().zip(ids).enumerate() {
            slot.shown = Some((index, id.clone()));
        }
    }

    /// The calls, after [`close`](Calls::close), each with an id that no other of them has.
    pub(crate) fn into_calls(self, ids: &mut Ids) -> Result<Vec<Call>, StreamError> {
        let mut used: HashSet<String> = self
            .slots
            .iter()
            .filter_map(|s| s.shown.as_ref().map(|(_, id)| id.clone()))
            .collect();
        let mut calls = Vec::new();
        for slot in self.slots {
            let name = mend_name(&slot.name).to_owned();
            if name.is_empty() {
                return Err(StreamError::InvalidCall);
            }
            let id = match slot.shown {
                Some((_, id)) => id,
                None => unused(slot.id, ids, |id| used.contains(id)),
            };
            used.insert(id.clone());
            calls.push(Call {
                call: ToolCall {
                    id,
                    name,
                    arguments: slot.arguments.into_text(),
                },
                owner: slot.owner.unwrap_or(Owner::Gateway),
                kind: slot.kind,
                extra: slot.extra,
            });
        }
        Ok(calls)
    }
}

/// What of the client's own calls was shown in the answer so far, over all rounds.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) ids: Ids,
    used: HashSet<String>,
}

impl Shown {
    pub(crate) fn new(ids: Ids) -> Shown {
        Shown {
            ids,
            used: HashSet::new(),
        }
    }

    fn add(&mut self, id: Option<String>, known: &dyn Known) -> (usize, String) {
        let used = &self.used;
        let id = unused(id, &mut self.ids, |id| {
            used.contains(id) || known.is_taken(id)
        });
        self.used.insert(id.clone());
        (self.used.len() - 1, id)
    }
}

/// The model's id, or a new one where it gave none or one that is in use.
fn unused(id: Option<String>, ids: &mut Ids, is_used: impl Fn(&str) -> bool) -> String {
    let mut id = id.unwrap_or_else(|| ids.call());
    while is_used(&id) {
        id = ids.call();
    }
    id
}

impl Slot {
    fn new(index: Option<u64>) -> Slot {
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
            shown: None,
        }
    }

    /// A fragment that points here by index, id or place belongs to this call and does not begin another.
    /// `touched`: this call had a fragment in the same delta.
    fn is_continued_by(&self, fragment: &Fragment, touched: bool, known: &dyn Known) -> bool {
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

    fn push(&mut self, fragment: Fragment, known: &dyn Known) {
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
    fn decide(&mut self, over: bool, known: &dyn Known) {
        let name = mend_name(&self.name);
        if self.owner.is_some() || name.is_empty() {
            return;
        }
        let offered = self.arguments_seen && known.is_offered(name);
        if over || offered || self.arguments.has_begun() {
            self.owner = Some(known.owner(name));
        }
    }

    /// The next delta for the client, if the call is its own.
    fn show(&mut self, known: &dyn Known, answer: &mut Shown) -> Option<Value> {
        if self.owner != Some(Owner::Client) {
            return None;
        }
        let text = self.arguments.take().to_owned();
        self.delta(&text, known, answer)
    }

    fn show_rest(&mut self, known: &dyn Known, answer: &mut Shown) -> Option<Value> {
        if self.owner != Some(Owner::Client) {
            return None;
        }
        let text = self.arguments.take_rest().to_owned();
        self.delta(&text, known, answer)
    }

    fn delta(&mut self, text: &str, known: &dyn Known, answer: &mut Shown) -> Option<Value> {
        let extra = std::mem::take(&mut self.new_extra);
        let (body, input) = self.kind.members();
        let mut delta = match &self.shown {
            Some(_) if text.is_empty() && extra.is_empty() => return None,
            Some((index, _)) => json!({"index": index, body: {input: text}}),
            None => {
                let (index, id) = self.shown.insert(answer.add(self.id.clone(), known));
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
