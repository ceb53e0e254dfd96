#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/text/json.hpp"

namespace reshard {

/// The longest YAML file that is read: settings of a run take some tens of kB.
inline constexpr std::uint64_t largest_yaml_bytes = 4'000'000;

/// Parses one YAML 1.1 document as a value, as PyYAML's safe loader reads it: settings that
/// programs wrote. No object is constructed and no code executed: of a value with a tag,
/// `!!python/tuple` and YAML's own tags are read as their content, any other value is null. An
/// alias is a copy of its anchor's value, and `<<` takes over the members of a mapping, or of a
/// list of them. Numbers are those of YAML 1.1: 10_000, 0x1f, 017 (15), 1:30 (90); 1e5 has no point
/// and is a text. Dates are texts, and so are integers beyond 64 bits. A byte order mark at the
/// start is skipped.
///
/// Errors of kind source that begin with `place`, and with the line where there is one: text that
/// is no YAML, longer than largest_yaml_bytes or not UTF-8, several documents, a key twice or one
/// that is no scalar, nesting deeper than 64, an alias inside its own anchor, and more than 200,000
/// values with the copies that anchors and aliases make.
Json parse_yaml(std::string_view text, std::string_view place);

}  // namespace reshard
