"""Keywords of JSON Schema whose values contain schemas: directly, in a list, or by name."""

ONE = frozenset(
    ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems",
     "unevaluatedProperties")
)  # fmt: skip
LIST = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
NAMED = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))

CHECKING = ONE | LIST | NAMED | {
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties",
    "minProperties", "required", "dependentRequired", "dependencies",
}  # fmt: skip
"""Keywords by which an answer is checked."""
ANNOTATIONS = frozenset(
    (
        "title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples", "format",
        "contentEncoding", "contentMediaType", "contentSchema", "nullable",
    )
)  # fmt: skip
"""Keywords that say something and check nothing."""
