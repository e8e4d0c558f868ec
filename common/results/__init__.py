"""Results of commands and of the Python API: frozen dataclasses that contain no analysis.

There is one file for each result. `to_json()` returns the JSON object that a command prints. The
command renders the text from the same result. `findleaks-1.schema.json`, beside these files,
describes the JSON. `tools/generate_schema.py` generates it from the annotations and from the
strings below the fields."""
