//! Tools: named, compiled, chosen for a request, and their calls admitted.

use serde_json::{Value, json};
use toolway_core::{
    agent::admit::admit,
    catalog::{Catalog, Selection, ServerTools},
    policy::ClientPolicy,
    translate::{
        calls::{Validator, parse_arguments},
        names,
        stream::{Known, Mode, Owner},
    },
};
use toolway_protocol::{
    mcp::tools::read_tool,
    tool::{JsonObject, ServerId, Tool},
};

use super::{Body, Table, body};

pub(super) const CASES: Table = &[
    ("names/assign_50", 100, || assign(50)),
    ("names/assign_1000", 20, || assign(1000)),
    ("schema/compile", 100, compile),
    ("schema/check_arguments_that_fit", 2000, || check(ARGUMENTS)),
    ("schema/check_arguments_that_do_not", 2000, || {
        check(r#"{"place": {"city": "Zürich", "country": "Switzerland"}}"#)
    }),
    ("call/admit", 500, || call("weather__forecast", ARGUMENTS)),
    ("call/refuse_an_unknown_tool", 100, || {
        call("weather__forcast", ARGUMENTS)
    }),
    ("catalog/select_3_of_3", 20_000, || select(3, None)),
    ("catalog/select_128_of_1000", 20_000, || select(1000, None)),
    ("catalog/select_by_name_of_3", 500, || {
        select(3, Some("weather/forecast, !web/*"))
    }),
    ("catalog/select_by_name_of_1000", 20, || {
        select(1000, Some("weather/forecast, !web/*"))
    }),
];

/// Arguments of `weather/forecast`, as a model writes them.
pub(super) const ARGUMENTS: &str = r#"{"place": {"city": "Zürich", "country": "CH"}, "days": 3, "units": "metric", "fields": ["temperature", "wind", "rain"]}"#;

/// Every tool is offered and is run by the one whom the mode says.
pub(super) struct OneOwner(Owner);

impl OneOwner {
    pub(super) fn of(mode: Mode) -> OneOwner {
        OneOwner(match mode {
            Mode::Loop => Owner::Gateway,
            Mode::PassThrough => Owner::Client,
        })
    }
}

impl Known for OneOwner {
    fn owner(&self, _: &str) -> Owner {
        self.0
    }
    fn claims(&self, _: &str) -> bool {
        true
    }
    fn is_offered(&self, _: &str) -> bool {
        true
    }
    fn parameters(&self, _: &str) -> Option<Value> {
        None
    }
}

/// Names for tools of which one in ten does not fit as it is.
fn assign(count: usize) -> Body {
    let server = server("weather");
    let own = |at: usize| match at % 10 {
        9 => format!("stations.list/{at}"),
        _ => format!("stations_list_{at}"),
    };
    let own: Vec<String> = (0..count).map(own).collect();
    body(move || names::assign(own.iter().map(|name| (&server, name.as_str()))))
}

fn compile() -> Body {
    let schema = forecast("forecast").input_schema;
    body(move || Validator::compile(&schema).expect("a good schema"))
}

fn check(arguments: &str) -> Body {
    let validator = Validator::compile(&forecast("forecast").input_schema).expect("a good schema");
    let arguments = parse_arguments(arguments).expect("an object");
    body(move || validator.check(&arguments))
}

/// From what the model wrote to what may be sent, or to what the model is told.
fn call(name: &'static str, arguments: &'static str) -> Body {
    let catalog = catalog(50);
    let selected = catalog.select(&Selection::everything(), &[], 128);
    let client = ClientPolicy::default();
    body(move || admit(name, arguments, &selected, &catalog, &client))
}

/// The tools of a request with or without an `X-Toolway-Tools` header.
fn select(count: usize, header: Option<&'static str>) -> Body {
    let catalog = build(count, plain);
    body(move || {
        let selection = Selection::parse(header, None, &[], catalog.servers()).expect("patterns");
        catalog.select(&selection, &[], 128)
    })
}

/// `weather/forecast` and other tools like it.
pub(super) fn catalog(count: usize) -> Catalog {
    build(count, forecast)
}

/// `weather/forecast` and others, made by `tool` from their names.
fn build(count: usize, tool: fn(&str) -> Tool) -> Catalog {
    let others = (1..count).map(|at| tool(&format!("forecast_{at}")));
    let tools = std::iter::once(tool("forecast")).chain(others);
    Catalog::build(&[ServerTools {
        server: server("weather"),
        stateful: false,
        risk: Default::default(),
        tools: tools.collect(),
        dropped: Vec::new(),
    }])
}

fn server(name: &str) -> ServerId {
    ServerId::parse(name).expect("a server's name")
}

/// A tool with a nested object, bounds, an enumeration and a list.
fn forecast(name: &str) -> Tool {
    let listed = json!({
        "name": name,
        "title": "Forecast",
        "description": "The weather of the next days at a place, day by day, with what is asked for.",
        "inputSchema": schema(),
        "annotations": {"readOnlyHint": true},
    });
    read_tool(&listed, 0).expect("a good tool")
}

/// A tool that is quickly compiled: a choice does not look at schemas.
fn plain(name: &str) -> Tool {
    let listed = json!({"name": name, "inputSchema": {"type": "object"}});
    read_tool(&listed, 0).expect("a good tool")
}

fn schema() -> JsonObject {
    let place = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1, "description": "Its name in any language."},
            "country": {"type": "string", "pattern": "^[A-Z]{2}$", "description": "ISO 3166."},
        },
        "required": ["city"],
        "additionalProperties": false,
    });
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "place": place,
            "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 1},
            "units": {"enum": ["metric", "imperial"]},
            "fields": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
        },
        "required": ["place"],
    });
    match schema {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    }
}
