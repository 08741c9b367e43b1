//! The table of OpenAPI's "Style Examples", and what it leaves open.

use serde_json::json;

use super::*;

fn form(style: Style, explode: bool) -> ValueForm {
    ValueForm::Style {
        style,
        explode,
        reserved: false,
    }
}

#[track_caller]
fn check_query(style: Style, explode: bool, value: &Value, expected: &str) {
    assert_eq!(
        pairs("color", value, &form(style, explode)).join("&"),
        expected
    );
}

#[track_caller]
fn check_path(style: Style, explode: bool, value: &Value, expected: &str) {
    assert_eq!(segment("color", value, &form(style, explode)), expected);
}

#[test]
fn queries_are_as_the_specification_shows_them() {
    let text = json!("blue");
    let list = json!(["blue", "black", "brown"]);
    let object = json!({"R": 100, "G": 200});
    for (style, explode, value, expected) in [
        (Style::Form, false, &text, "color=blue"),
        (Style::Form, false, &list, "color=blue,black,brown"),
        (
            Style::Form,
            true,
            &list,
            "color=blue&color=black&color=brown",
        ),
        (Style::Form, false, &object, "color=R,100,G,200"),
        (Style::Form, true, &object, "R=100&G=200"),
        (Style::Space, false, &list, "color=blue%20black%20brown"),
        (Style::Space, false, &object, "color=R%20100%20G%20200"),
        (Style::Pipe, false, &list, "color=blue%7Cblack%7Cbrown"),
        (
            Style::Pipe,
            true,
            &list,
            "color=blue&color=black&color=brown",
        ),
        (
            Style::DeepObject,
            true,
            &object,
            "color%5BR%5D=100&color%5BG%5D=200",
        ),
    ] {
        check_query(style, explode, value, expected);
    }
}

#[test]
fn paths_are_as_the_specification_shows_them() {
    let text = json!("blue");
    let list = json!(["blue", "black"]);
    let object = json!({"R": 100, "G": 200});
    for (style, explode, value, expected) in [
        (Style::Simple, false, &text, "blue"),
        (Style::Simple, true, &list, "blue,black"),
        (Style::Simple, false, &object, "R,100,G,200"),
        (Style::Simple, true, &object, "R=100,G=200"),
        (Style::Label, false, &text, ".blue"),
        (Style::Label, false, &list, ".blue,black"),
        (Style::Label, true, &list, ".blue.black"),
        (Style::Label, true, &object, ".R=100.G=200"),
        (Style::Matrix, false, &text, ";color=blue"),
        (Style::Matrix, false, &list, ";color=blue,black"),
        (Style::Matrix, true, &list, ";color=blue;color=black"),
        (Style::Matrix, false, &object, ";color=R,100,G,200"),
        (Style::Matrix, true, &object, ";R=100;G=200"),
    ] {
        check_path(style, explode, value, expected);
    }
}

#[test]
fn what_stands_between_values_cannot_come_from_a_value() {
    check_query(
        Style::Form,
        false,
        &json!(["a,b", "c&d=e"]),
        "color=a%2Cb,c%26d%3De",
    );
    check_path(
        Style::Matrix,
        true,
        &json!(["a;b=c/../d"]),
        ";color=a%3Bb%3Dc%2F..%2Fd",
    );
}

#[test]
fn nothing_is_left_out_and_what_is_nested_is_json() {
    check_query(Style::Form, true, &json!([]), "");
    check_query(Style::Form, false, &json!({}), "");
    check_query(Style::Form, true, &json!(null), "");
    check_query(
        Style::Form,
        true,
        &json!([{"a": 1}]),
        "color=%7B%22a%22%3A1%7D",
    );
    check_query(
        Style::DeepObject,
        true,
        &json!({"a": [{"b": true}, null], "c": null}),
        "color%5Ba%5D%5B0%5D%5Bb%5D=true",
    );
}

#[test]
fn a_parameter_with_content_is_json() {
    let form = ValueForm::Content { is_json: true };
    assert_eq!(
        pairs("f", &json!({"a": "b"}), &form),
        ["f=%7B%22a%22%3A%22b%22%7D"]
    );
    assert_eq!(header(&json!("x"), &form), "\"x\"");
    assert_eq!(
        header(&json!("x"), &ValueForm::Content { is_json: false }),
        "x"
    );
}

#[test]
fn headers_are_simple() {
    let object = json!({"R": 100, "G": 200});
    assert_eq!(header(&json!(["a", 1]), &form(Style::Simple, false)), "a,1");
    assert_eq!(header(&object, &form(Style::Simple, false)), "R,100,G,200");
    assert_eq!(header(&object, &form(Style::Simple, true)), "R=100,G=200");
}

#[test]
fn reserved_characters_are_left_where_that_is_allowed() {
    let form = ValueForm::Style {
        style: Style::Form,
        explode: true,
        reserved: true,
    };
    assert_eq!(
        pairs("u", &json!("http://a/b?c=d&e"), &form),
        ["u=http://a/b?c%3Dd%26e"]
    );
}
