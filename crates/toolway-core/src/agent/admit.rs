//! From what a model wrote to a call that may be sent: is there such a tool, may it be called, do the
//! arguments fit?

use crate::{
    catalog::{Catalog, Selected},
    policy::{Admitted, CallRequest, ClientPolicy, Verdict},
    translate::calls,
};
use toolway_protocol::tool::{CallError, JsonObject};

/// The tool and the arguments of a call that may be sent; otherwise what the model is told, and nothing is sent.
pub fn admit(
    name: &str,
    arguments: &str,
    selected: &Selected,
    catalog: &Catalog,
    client: &ClientPolicy,
) -> Result<(Admitted, JsonObject), CallError> {
    let Some((tool, is_shown)) = selected.meant(name, catalog) else {
        return Err(CallError::UnknownTool {
            name: name.to_owned(),
            did_you_mean: selected.suggest(name),
        });
    };
    let arguments = calls::parse_arguments(arguments);
    let nothing = JsonObject::new();
    let request = CallRequest {
        tool,
        is_shown,
        key: client.key,
        arguments: arguments.as_ref().unwrap_or(&nothing),
    };
    let offered = match client.policy.evaluate(&request) {
        Verdict::Allow(offered) | Verdict::Ask(offered) => offered,
        Verdict::Deny { reason, .. } => return Err(CallError::Denied { reason }),
    };
    let arguments = arguments?;
    if let Some(validator) = &offered.validator {
        validator.check(&arguments)?;
    }
    Ok((offered, arguments))
}
