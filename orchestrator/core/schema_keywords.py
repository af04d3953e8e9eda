"""Keywords of JSON Schema whose values contain schemas: directly, in a list, or by name."""

ONE = frozenset(
    ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems",
     "unevaluatedProperties")
)  # fmt: skip
LIST = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
NAMED = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
