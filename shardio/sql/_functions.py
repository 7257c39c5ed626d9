"""Which functions a condition may call: those whose value depends on their arguments alone."""

from __future__ import annotations

import functools
from typing import NamedTuple

from shardio.sql._engine import ask

# Functions whose value depends on their arguments alone.  DuckDB's own word for that (`stability`) also holds
# for some that read the clock, plan a statement or tell its version.
_PURE = frozenset(
    """
    ! !~~ !~~* % & && * ** + - ->> / // < <-> << <= <=> <@ = > >= >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~
    is_distinct_from is_not_distinct_from like_escape ilike_escape not_like_escape not_ilike_escape
    abs acos acosh add age asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees divide
    even exp factorial floor gamma gcd greatest greatest_common_divisor isfinite isinf isnan lcm least
    least_common_multiple lgamma ln log log10 log2 mod multiply nextafter pi pow power radians round
    round_even roundbankers sign signbit sin sinh sqrt subtract tan tanh trunc xor
    array_extract array_contains array_distinct array_has array_has_all array_has_any array_indexof
    array_length array_position array_reverse_sort array_slice array_sort array_unique array_value flatten
    len length list_concat list_contains list_distinct list_element list_extract list_has list_has_all
    list_has_any list_indexof list_position list_reverse_sort list_slice list_sort list_unique list_value
    list_cosine_distance list_cosine_similarity list_distance list_dot_product list_inner_product
    array_cosine_distance array_cosine_similarity array_distance array_dot_product array_inner_product
    array_cat list_cat list_pack list_where list_select array_where array_select list_intersect
    array_intersect list_zip array_zip range generate_series struct_extract struct_pack row
    ascii bar base64 bin bit_length char_length character_length chr concat concat_ws contains
    damerau_levenshtein decode editdist3 encode ends_with format from_base64 from_binary from_hex hamming hash
    hex instr jaccard jaro_similarity jaro_winkler_similarity lcase left left_grapheme length_grapheme
    levenshtein lower lpad ltrim md5 md5_number mismatches nfc_normalize octet_length ord overlay position
    prefix printf regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches
    regexp_replace regexp_split_to_array repeat replace reverse right right_grapheme rpad rtrim sha1 sha256
    split split_part starts_with str_split str_split_regex string_split string_split_regex string_to_array
    strip_accents strlen strpos substr substring substring_grapheme suffix to_base to_base64 to_binary to_hex
    translate trim ucase unbin unhex unicode upper url_decode url_encode
    json_array_length json_contains json_exists json_extract json_extract_path json_extract_path_text
    json_extract_string json_keys json_type json_valid json_value
    century date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth
    dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear julian last_day
    make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns microsecond millennium millisecond
    minute month monthname nanosecond quarter second strftime strptime time_bucket to_centuries to_days
    to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters
    to_seconds to_timestamp to_weeks to_years try_strptime week weekday weekofyear year yearweek
    """.split()  # noqa: SIM905 - a list would fill four pages
)


class Functions(NamedTuple):
    """DuckDB's functions by name: those that a condition may call, all others, and those that return text."""

    pure: frozenset[str]
    others: frozenset[str]
    text: frozenset[str]


@functools.cache
def known_functions() -> Functions:
    rows = ask(
        "SELECT lower(function_name), bool_and(function_type = 'scalar' AND stability = 'CONSISTENT' AND "
        "NOT coalesce(has_side_effects, true)), coalesce(bool_or(return_type = 'VARCHAR'), false) "
        "FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'window', 'macro') GROUP BY 1"
    )
    pure = frozenset(name for name, consistent, _ in rows if consistent and name in _PURE)
    return Functions(
        pure,
        frozenset(name for name, _, _ in rows) - pure,
        frozenset(name for name, _, text in rows if text),
    )
