//! From what a model wrote to a call that may be sent: is there such a tool, may it be called, do the
//! arguments fit?

use std::sync::Arc;

use crate::{
    catalog::{Catalog, Offered, Selected},
    policy::{self, Verdict},
    tool::{CallError, JsonObject},
    translate::calls,
};

/// The tool and the arguments of a call that may be sent; otherwise what the model is told, and nothing is sent.
pub fn admit(
    name: &str,
    arguments: &str,
    selected: &Selected,
    catalog: &Catalog,
) -> Result<(Arc<Offered>, JsonObject), CallError> {
    let offered = match policy::evaluate(name, selected, catalog) {
        Verdict::Allow(offered) => offered,
        Verdict::Deny(reason) => return Err(CallError::Denied { reason }),
        Verdict::Unknown => {
            return Err(CallError::UnknownTool {
                name: name.to_owned(),
                did_you_mean: selected.suggest(name),
            });
        }
    };
    let arguments = calls::parse_arguments(arguments)?;
    if let Some(validator) = &offered.validator {
        validator.check(&arguments)?;
    }
    Ok((offered.clone(), arguments))
}
