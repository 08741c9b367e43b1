//! How far a call has come: `notifications/progress`.

use serde_json::Value;

use crate::tool::Progress;

/// Reads the `params` of a progress notification; nothing if they do not say how far the call is.
pub fn read_progress(params: &Value) -> Option<Progress> {
    Some(Progress {
        progress: number(&params["progress"])?,
        total: number(&params["total"]),
        message: params["message"].as_str().map(str::to_owned),
    })
}

/// A number, also one that was written as text.
fn number(value: &Value) -> Option<f64> {
    value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())
        .filter(|n| n.is_finite())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_of_it_is_read() {
        let progress = read_progress(&json!({"progress": 1, "total": 2.5, "message": "m"}));
        let expected = Progress {
            progress: 1.0,
            total: Some(2.5),
            message: Some("m".to_owned()),
        };
        assert_eq!(progress, Some(expected));
    }

    #[test]
    fn only_the_progress_itself_is_needed() {
        let bare = Some(Progress {
            progress: 0.5,
            total: None,
            message: None,
        });
        assert_eq!(
            read_progress(&json!({"progress": "0.5", "total": null, "message": 5})),
            bare
        );
        assert_eq!(read_progress(&json!({"total": 5})), None);
        assert_eq!(read_progress(&json!({"progress": "nan"})), None);
        assert_eq!(read_progress(&json!(null)), None);
    }
}
