"""Name the referrers of OCaml's objects. The objects of OCaml's heap are not listed."""
