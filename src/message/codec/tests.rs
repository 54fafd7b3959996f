use super::*;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Order {
    sku: String,
    quantity: u32,
}

fn order(body: &str, content_type: Option<&str>) -> Result<Order, String> {
    Json.decode(body.as_bytes(), content_type)
        .map_err(|error: CodecError| error.to_string())
}

#[test]
fn json_there_and_back() {
    let order = Order {
        sku: "ü-1".to_owned(),
        quantity: 3,
    };
    let body = Json.encode(&order).unwrap();
    assert_eq!(Encode::<Order>::content_type(&Json), "application/json");
    assert_eq!(Decode::<Order>::decode(&Json, &body, None).unwrap(), order);
}

#[test]
fn a_type_that_is_only_written() {
    #[derive(Serialize)]
    struct Borrowed<'a> {
        sku: &'a str,
    }
    let body = Json.encode(&Borrowed { sku: "a" }).unwrap();
    assert_eq!(body, br#"{"sku":"a"}"#);
}

#[test]
fn content_types_json_reads() {
    let body = r#"{"sku":"a","quantity":1}"#;
    for accepted in [
        "application/json",
        "text/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        " application/json ;charset=UTF-8",
        "application/vnd.acme.order+json",
        "application/vnd.acme.order+JSON; v=2",
        "",
        "  ",
    ] {
        assert!(order(body, Some(accepted)).is_ok(), "{accepted:?}");
    }
    for refused in [
        "application/xml",
        "text/plain",
        "application/jsonp",
        "json",
        "application/octet-stream; of=application/json",
        ";",
    ] {
        let error = order(body, Some(refused)).unwrap_err();
        assert_eq!(error, format!("the content type is {refused}, not JSON"));
    }
}

#[test]
fn errors_name_what_was_wrong() {
    let missing = order(r#"{"sku":"a"}"#, None).unwrap_err();
    assert_eq!(
        missing,
        "the JSON is not what was expected: missing field `quantity` at line 1 column 11"
    );
    let broken = order("nonsense", None).unwrap_err();
    assert!(broken.starts_with("the body is not JSON: "), "{broken}");
    let empty = order("", None).unwrap_err();
    assert!(empty.starts_with("the body is not JSON: "), "{empty}");
    let deep = order(&"[".repeat(100_000), None).unwrap_err();
    assert!(deep.starts_with("the "), "{deep}");
    let trailing = order(r#"{"sku":"a","quantity":1} x"#, None).unwrap_err();
    assert!(trailing.contains("trailing"), "{trailing}");
}

#[test]
fn what_cannot_be_json() {
    let keys = std::collections::BTreeMap::from([(vec![1], 1)]);
    let error = Json.encode(&keys).unwrap_err().to_string();
    assert_eq!(error, "the payload cannot be JSON: key must be a string");
}

#[test]
fn text() {
    let body = Text.encode("grüß").unwrap();
    assert_eq!(Text.encode(&"grüß".to_owned()).unwrap(), body);
    for accepted in [None, Some(""), Some("text/plain"), Some("Text/CSV; header")] {
        assert_eq!(Text.decode(&body, accepted).unwrap(), "grüß");
    }
    let error = Text.decode(&body, Some("application/json")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the content type is application/json, not text"
    );
    let error = Text.decode(b"ab\xff", None).unwrap_err().to_string();
    assert!(error.starts_with("the body is not UTF-8: "), "{error}");
}

#[test]
fn bytes() {
    let body = Bytes.encode(&vec![0, 255]).unwrap();
    assert_eq!(Bytes.decode(&body, Some("image/png")).unwrap(), [0, 255]);
    assert_eq!(
        Encode::<Vec<u8>>::content_type(&Bytes),
        "application/octet-stream"
    );
}

#[test]
fn an_error_keeps_its_source_and_one_line() {
    let error = CodecError::caused_by("bad\nframe", "too short");
    assert_eq!(error.to_string(), "bad frame");
    assert_eq!(error.source().unwrap().to_string(), "too short");
    let refused = order("1", Some("a\r\nb")).unwrap_err();
    assert_eq!(refused, "the content type is a  b, not JSON");
}

#[test]
fn codecs_as_objects() {
    let _: Box<dyn Encode<Order>> = Box::new(Json);
    let _: std::sync::Arc<dyn Decode<Order>> = std::sync::Arc::new(Json);
}

proptest! {
    #[test]
    fn any_body_and_type_ends_in_a_value_or_one_line(
        body in prop::collection::vec(any::<u8>(), 0..64),
        content_type in prop::option::of("[ -~]{0,20}|application/json"),
    ) {
        let decoded: Result<Order, _> = Json.decode(&body, content_type.as_deref());
        if let Err(error) = decoded {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
