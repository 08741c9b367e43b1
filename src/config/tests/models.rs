use super::*;

const UPSTREAMS: &str = "\n[[upstreams]]\nname = 'a'\nbase_url = 'http://a'\n\
    [[upstreams]]\nname = 'b'\nbase_url = 'http://b'\n";

#[track_caller]
fn model_refused(keys: &str, problem: &str) {
    refused(&format!("{UPSTREAMS}[models.fast]\n{keys}"), problem);
}

#[test]
fn a_name_stands_for_models_of_upstreams() {
    let config = ok(&format!(
        "{UPSTREAMS}[models.'team/fast']\nuse = ['a/org/x', 'b/y']\nweights = [3, 1]"
    ));
    let model = &config.models[0];
    assert_eq!(model.name, "team/fast");
    let targets = model.targets.iter();
    let targets: Vec<_> = targets
        .map(|it| (it.upstream.as_str(), it.model.as_str()))
        .collect();
    assert_eq!(targets, [("a", "org/x"), ("b", "y")]);
    assert_eq!(model.weights, [3, 1]);
}

#[test]
fn an_upstream_behind_a_name_gets_requests() {
    let config = ok(&format!("{UPSTREAMS}[models.fast]\nuse = ['b/y']"));
    assert!(config.warnings.is_empty());
    assert_eq!(ok(UPSTREAMS).warnings.len(), 1);
}

#[test]
fn what_no_name_can_stand_for_is_said() {
    let one = "models.fast.use: must name 1 to 16 models, such as \"openai/gpt-5\": the name of an upstream, `/`, and its model";
    model_refused("", one);
    model_refused("use = []", one);
    let form =
        "models.fast.use[0]: must be the name of an upstream, `/`, and its model: \"openai/gpt-5\"";
    model_refused("use = ['x']", form);
    model_refused("use = ['a/']", form);
    model_refused(
        "use = ['c/x']",
        "models.fast.use[0]: unknown upstream `c`; did you mean `a`?",
    );
    model_refused(
        "use = ['a/x', 'a/x']",
        "models.fast.use[1]: stands here twice",
    );
    model_refused(
        "use = ['a/x']\nweights = [1, 2]",
        "models.fast.weights: must have one number for each of the 1 models in `use`",
    );
    model_refused(
        "use = ['a/x']\nweights = [0]",
        "models.fast.weights: must have a number above 0",
    );
    model_refused(
        "use = ['a/x']\nweights = [-1]",
        "models.fast.weights[0]: must be between 0 and 1000, not -1",
    );
    refused(
        &format!("{UPSTREAMS}[models.'a b']\nuse = ['a/x']"),
        "models.a b: a name has 1 to 256 characters and no spaces",
    );
}

#[test]
fn a_model_that_its_upstream_does_not_list_is_a_warning() {
    let text = format!("{UPSTREAMS}[models.fast]\nuse = ['a/x', 'b/y']").replacen(
        "http://a'",
        "http://a'\nmodels = ['x*']",
        1,
    );
    warned(&text, "");
    warned(
        &text.replace("a/x", "a/z"),
        "models.fast.use[0]: `models` of upstream `a` has no pattern for `z`; requests go there all the same",
    );
}

#[test]
fn a_function_may_ask_a_name() {
    let upstream = "[[upstreams]]\nname = 'a'\nbase_url = 'http://a'\nmodels = ['x']\n";
    let function = "[functions.brief]\nmodel = 'fast'\nprompt = '{input}'\n";
    ok(&format!("{upstream}{function}[models.fast]\nuse = ['a/x']"));
    refused(
        &format!("{upstream}{function}"),
        "functions.brief.model: no upstream has the model `fast`",
    );
}
