"""The fixed codes of the mangling (Itanium C++ ABI, 5.1.3 operators, 5.1.4 special names, 5.1.5 types, 5.1.8 compression)."""

from __future__ import annotations

BUILTINS = {
    **{"v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short"},
    **{"t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long"},
    **{"y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double"},
    **{"e": "long double", "g": "__float128", "z": "..."},
}

BUILTINS_D = {
    **{"d": "decimal64", "e": "decimal128", "f": "decimal32", "h": "half", "i": "char32_t", "s": "char16_t", "u": "char8_t"},
    **{"a": "auto", "c": "decltype(auto)", "n": "decltype(nullptr)"},
}

LITERAL_SUFFIXES = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll", "unsigned long long": "ull"}

# code: (text, operands); operands 0: has a form of its own
OPERATORS = {
    **{"nw": ("new", 0), "na": ("new[]", 0), "dl": ("delete", 0), "da": ("delete[]", 0), "aw": ("co_await", 1)},
    **{"ps": ("+", 1), "ng": ("-", 1), "ad": ("&", 1), "de": ("*", 1), "co": ("~", 1), "nt": ("!", 1), "pp": ("++", 1), "mm": ("--", 1)},
    **{"pl": ("+", 2), "mi": ("-", 2), "ml": ("*", 2), "dv": ("/", 2), "rm": ("%", 2), "an": ("&", 2), "or": ("|", 2), "eo": ("^", 2)},
    **{"aS": ("=", 2), "pL": ("+=", 2), "mI": ("-=", 2), "mL": ("*=", 2), "dV": ("/=", 2), "rM": ("%=", 2), "aN": ("&=", 2)},
    **{"oR": ("|=", 2), "eO": ("^=", 2), "ls": ("<<", 2), "rs": (">>", 2), "lS": ("<<=", 2), "rS": (">>=", 2), "eq": ("==", 2)},
    **{"ne": ("!=", 2), "lt": ("<", 2), "gt": (">", 2), "le": ("<=", 2), "ge": (">=", 2), "ss": ("<=>", 2), "aa": ("&&", 2)},
    **{"oo": ("||", 2), "cm": (",", 2), "pm": ("->*", 2), "pt": ("->", 0), "cl": ("()", 0), "ix": ("[]", 0), "qu": ("?", 0)},
}

# code: (text, what follows)
SPECIAL = {
    **{"TV": ("vtable for ", "type"), "TT": ("VTT for ", "type"), "TI": ("typeinfo for ", "type"), "TS": ("typeinfo name for ", "type")},
    **{"TC": ("construction vtable for ", "construction"), "Th": ("non-virtual thunk to ", "thunk"), "Tv": ("virtual thunk to ", "thunk")},
    **{
        "Tc": ("covariant return thunk to ", "covariant"),
        "GV": ("guard variable for ", "name"),
        "TW": ("TLS wrapper function for ", "name"),
    },
    **{"TH": ("TLS init function for ", "name"), "GR": ("reference temporary for ", "temporary")},
}

_STRING = "std::basic_string<char, std::char_traits<char>, std::allocator<char> >"
_STREAM = "std::basic_{}<char, std::char_traits<char> >"

# code: (short form, full form in front of a constructor, its last name)
STANDARD = {
    "Sa": ("std::allocator", "std::allocator", "allocator"),
    "Sb": ("std::basic_string", "std::basic_string", "basic_string"),
    "Ss": ("std::string", _STRING, "basic_string"),
    "Si": ("std::istream", _STREAM.format("istream"), "basic_istream"),
    "So": ("std::ostream", _STREAM.format("ostream"), "basic_ostream"),
    "Sd": ("std::iostream", _STREAM.format("iostream"), "basic_iostream"),
}
