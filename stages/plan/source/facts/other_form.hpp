#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/text/json.hpp"
#include "core/mapping/sides/side.hpp"
#include "stages/plan/source/catalog/stored_shares.hpp"

namespace reshard {

/// How config.json states that its weights are quantised: "gptq (4 bits)", "compressed-tensors
/// (int-quantized)", "modelopt (FP8)"; "" where it states nothing.
std::string quantised_by(Json const& config);

/// The stored tensors of one place that stand beside a weight and that the map has no names for:
/// those of its module, else scales of so many modules around it. "'….qweight' I32 [8, 64], …" of a
/// weight "….weight"; "" for none.
std::string unnamed_beside(std::string_view weight, NameTable const& stored,
                           std::span<StoredName const> names, StoredTable const& table, int levels);

/// Ways out for a source whose weights have a form that no map describes, as two sentences without
/// the last dot: `beside` is of unnamed_beside(), `method` of quantised_by().
std::string other_form_words(std::string const& beside, std::string const& method, bool has_values);

/// The same where the scales of a weight are there, and its blocks do not fit its axes: `fault` is
/// of quantised_fault().
std::string straddling_words(std::string const& fault, bool has_values);

}  // namespace reshard
