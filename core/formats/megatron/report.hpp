#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/text/json.hpp"
#include "core/formats/megatron/headers/classify.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/headers/shard.hpp"

namespace reshard::megatron {

/// The facts that classify() asks for, from a directory and the headers of its shards. `headers` is
/// parallel to `directory.shards`; a shard without a model file has nullptr, and so may any shard
/// whose header was not read.
std::vector<ShardFacts> shard_facts(Directory const& directory,
                                    std::span<ShardHeader const* const> headers);

/// The facts of one shard.
ShardFacts facts_of(Shard const& shard, std::optional<ArgsSizes> const& args,
                    std::optional<KeySummary> const& keys);

/// The answer of `inspect`: layout_class, reason, expected_pattern, loader, sizes, found,
/// mismatches, notes, model, pp_layout, optimizer, rng, in this order. `headers` as above.
Json inspect_json(Directory const& directory, Classification const& classification,
                  std::span<ShardHeader const* const> headers);

/// The report of inspect_json() as text, without mismatches and notes: one aligned line per field.
std::string inspect_text(Json const& report);

/// The report in about ten lines. A note that begins with `size_not_given` is a detail.
std::string inspect_summary(Json const& report);
constexpr std::string_view size_not_given = "expert_parallel_size was not given";

/// "tp 2, pp 2 (from args)", of inspect_json's "sizes"; each with its source if they differ.
std::string layout_text(Json const& sizes);
/// "tp 2, pp 2", without their sources.
std::string sizes_text(Json const& sizes);
/// "4 layers, hidden size 64, …", of inspect_json's "model"; null members are left out.
std::string model_text(Json const& model);

/// "38 of 38 tensors are low-rank matrices (LoRA): …", the line "adapter" of a report.
std::string adapter_text(std::size_t matrices, std::size_t tensors);
/// Whether a tensor is such a matrix, by names as Megatron-Bridge, mcore-bridge and peft have them.
bool is_adapter_matrix(std::string_view name);

/// A value of the report, safe on a terminal: control characters are escaped, as names on disk are
/// untrusted; "-" for null and for an empty list.
std::string report_value(Json const& value);

}  // namespace reshard::megatron
