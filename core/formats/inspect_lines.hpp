#pragma once

#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "core/base/tables/integers.hpp"
#include "core/base/text/json.hpp"

namespace reshard {

// The common parts of the reports of `inspect`.

/// "label             text\n"
inline std::string inspect_line(std::string_view label, std::string_view text) {
  return fmt::format("{:<18}{}\n", label, text);
}

/// The mismatches, "-" if there are none, and the notes: an item a line, the label before the
/// first. Control characters are escaped.
std::string inspect_findings(std::span<std::string const> mismatches,
                             std::span<std::string const> notes);

/// The facts about the model shown by the tensors of a Megatron checkpoint.
struct SeenTensors {
  bool latent_attention = false;
  Index embedding_rows = 0;  ///< padding included; 0 if there is no embedding
};

/// Adds "sizes" and "model" to `json`, and returns their lines, "layout" and "model", of a format
/// whose files load at any layout: the sizes that Megatron's args state are those of the run that
/// the args are from (decision 0042). "" if args do not state them or are null.
std::string inspect_args(Json const& args, SeenTensors const& seen, Json& json);

/// Adds "model" to `json`, and returns its line: the sizes that a config.json states under the
/// names that most families have. "" if it states none of the first.
std::string inspect_config(Json const& config, Json& json);

}  // namespace reshard
