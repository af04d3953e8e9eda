"""Where the parts of a JSON Schema are schemas themselves: as they are, in a list, by name."""

ONE = frozenset(
    ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems",
     "unevaluatedProperties")
)  # fmt: skip
LIST = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
NAMED = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
