#include "core/formats/megatron/report.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/formats/inspect_lines.hpp"
#include "core/formats/megatron/keys.hpp"
#include "core/formats/megatron/mcore/root.hpp"

namespace reshard::megatron {
namespace {

using Headers = std::span<ShardHeader const* const>;

Json texts(std::vector<std::string> const& values) {
  Json result = Json::array();
  for (auto const& value : values) result.push(value);
  return result;
}

Json sized(int value, SizeSource source) {
  Json result = Json::object();
  result.set("value", value).set("source", text(source));
  return result;
}

Json sizes_json(Classification const& c) {
  Json result = Json::object();
  result.set("tensor", sized(c.sizes.tp, c.sources.tp));
  result.set("pipeline", sized(c.sizes.pp, c.sources.pp));
  result.set("virtual_pipeline", sized(c.sizes.vpp, c.sources.vpp));
  result.set("expert", sized(c.sizes.ep, c.sources.ep));
  result.set("expert_tensor", sized(c.sizes.etp, c.sources.etp));
  return result;
}

/// [smallest, largest] of each number of the names.
Json ranges_json(Directory const& directory) {
  std::vector<std::pair<int, int>> ranges;
  for (auto const& shard : directory.shards)
    for (std::size_t i = 0; i < shard.numbers.numbers.size(); ++i) {
      int const number = shard.numbers.numbers[i];
      if (i == ranges.size()) ranges.emplace_back(number, number);
      ranges[i] = {std::min(ranges[i].first, number), std::max(ranges[i].second, number)};
    }
  Json result = Json::array();
  for (auto const& [smallest, largest] : ranges)
    result.push(Json(Json::Array{Json(smallest), Json(largest)}));
  return result;
}

Json found_json(Directory const& directory, Classification const& c) {
  Json result = Json::object();
  result.set("path", directory.iteration_dir.string());
  result.set("iteration", directory.iteration);
  result.set("release", directory.release);
  result.set("directories", static_cast<std::int64_t>(directory.shards.size()));
  result.set("ranges", ranges_json(directory));
  result.set("missing", texts(c.missing));
  result.set("extra", texts(c.extra));
  result.set("without_model_file", texts(c.without_file));
  result.set("optimizer_only", texts(directory.optimizer_only));
  result.set("foreign", texts(directory.foreign));
  return result;
}

Json const* first_args(Headers headers) {
  for (auto const* header : headers)
    if (header != nullptr && header->args.members() != nullptr) return &header->args;
  return nullptr;
}

Json fact(Json const* args, std::string_view key) {
  Json const* value = args == nullptr ? nullptr : args->find(key);
  return value == nullptr ? Json() : *value;
}

/// Which parts of names occur in any shard.
class KeySearch {
 public:
  explicit KeySearch(Headers headers) {
    std::set<ShardHeader const*> seen{nullptr};  // shards that are alike share a header
    for (ShardHeader const* const header : headers)
      if (seen.insert(header).second) headers_.push_back(header);
  }
  bool any(std::string_view part) const {
    for (auto const* header : headers_) {
      for (auto const& chunk : header->chunks)
        for (auto const& tensor : chunk.tensors)
          if (tensor.name.find(part) != std::string::npos) return true;
    }
    return false;
  }
  std::set<std::string_view> names() const {
    std::set<std::string_view> result;
    for (auto const* header : headers_) {
      for (auto const& chunk : header->chunks)
        for (auto const& tensor : chunk.tensors) result.insert(tensor.name);
    }
    return result;
  }
  /// Rows of the first tensor whose name ends so.
  Json rows(std::string_view suffix) const {
    for (auto const* header : headers_) {
      for (auto const& chunk : header->chunks)
        for (auto const& tensor : chunk.tensors)
          if (tensor.name.ends_with(suffix) && !tensor.shape.empty()) return Json(tensor.shape[0]);
    }
    return {};
  }

 private:
  std::vector<ShardHeader const*> headers_;
};

std::string_view expert_module(KeySearch const& keys) {
  if (keys.any(".experts.local_experts.")) return "SequentialMLP";
  if (keys.any(".experts.linear_fc1.")) return "TEGroupedMLP";
  return keys.any(".experts.weight1") ? "GroupedMLP" : "none";
}

std::string_view module_spec(KeySearch const& keys) {
  if (keys.any("linear_qkv.layer_norm_weight") || keys.any("linear_fc1.layer_norm_weight"))
    return "Transformer Engine";
  return keys.any(".input_layernorm.") ? "local" : "unknown";
}

std::string attention(KeySearch const& keys, Json const* args) {
  if (keys.any(".linear_kv_up_proj.")) return "MLA";
  auto const heads = fact(args, "num_attention_heads");
  auto const groups = fact(args, "num_query_groups");
  if (heads.integer() == nullptr || groups.integer() == nullptr ||
      *heads.integer() == *groups.integer())
    return keys.any(".linear_qkv.") ? "MHA" : "none";
  return fmt::format("GQA, {} heads in {} groups", *heads.integer(), *groups.integer());
}

/// Sets the root of the language model's names and the other parts, if there are any.
void set_parts(Json& model, std::set<std::string_view> const& names) {
  std::string root;
  for (std::string_view const name : names)
    if (auto found = root_in(name)) root = std::move(*found);
  std::map<std::string, std::size_t> const parts = parts_beside(names, root);
  model.set("vision", !parts.empty());
  if (!root.empty()) model.set("root", root);
  for (auto const& [part, count] : parts)
    model.set("part_" + part, counted(count, "tensor") + " beside the language model");
}

Json model_json(Headers headers, Classification const& c) {
  Json const* args = first_args(headers);
  KeySearch const keys(headers);
  Json result = Json::object();
  result.set("spec", module_spec(keys));
  result.set("experts", expert_module(keys));
  result.set("attention", attention(keys, args));
  result.set("multi_token_prediction", keys.any("mtp.layers."));
  result.set("state_space", keys.any(".mixer."));
  std::set<std::string_view> const names = keys.names();
  set_parts(result, names);
  auto const matrices = std::ranges::count_if(names, is_adapter_matrix);
  if (matrices > 0)
    result.set("adapter", adapter_text(static_cast<std::size_t>(matrices), names.size()));
  for (std::string_view const key : {"num_layers", "hidden_size", "ffn_hidden_size", "num_experts",
                                     "moe_ffn_hidden_size", "vocab_size", "padded_vocab_size"})
    result.set(key, fact(args, key));
  auto const rows = keys.rows("embedding.word_embeddings.weight");
  result.set("embedding_rows",
             rows.integer() == nullptr ? Json() : Json(*rows.integer() * c.sizes.tp));
  auto const untied = fact(args, "untie_embeddings_and_output_weights");
  result.set("tied_embeddings", untied.boolean() == nullptr ? Json() : Json(!*untied.boolean()));
  return result;
}

/// Decoder layers in a chunk of the first shard of this stage whose header is known; -1 when there
/// is none.
int layers_found(Classification const& c, Headers headers, PipelineChunk const& chunk) {
  for (std::size_t i = 0; i < headers.size() && i < c.places.size(); ++i) {
    if (headers[i] == nullptr || c.places[i].pp != chunk.rank) continue;
    auto const v = static_cast<std::size_t>(chunk.rank_chunk);
    if (v >= headers[i]->chunks.size()) return 0;
    std::set<int> layers;
    for (auto const& tensor : headers[i]->chunks[v].tensors)
      if (int const layer = decoder_layer(tensor.name); layer >= 0) layers.insert(layer);
    return static_cast<int>(layers.size());
  }
  return -1;
}

Json runs_json(std::vector<Run> const& runs) {
  Json result = Json::array();
  for (auto const& run : runs) result.push(Json(Json::Array{Json(run.begin), Json(run.end)}));
  return result;
}

/// The chunks by args, each compared with the layers that its file has; disagreements go to
/// `mismatches`.
Json pipeline_json(Classification const& c, Headers headers, Json& mismatches) {
  Json const* args = first_args(headers);
  auto const layers = fact(args, "num_layers");
  if (layers.integer() == nullptr) return {};
  Json result = Json::array();
  try {
    for (auto const& chunk : pipeline_chunks(pipeline_spec(*args, c.sizes))) {
      Json entry = Json::object();
      entry.set("pp", chunk.rank).set("vpp", chunk.rank_chunk);
      entry.set("decoder", runs_json(chunk.decoder)).set("mtp", runs_json(chunk.mtp));
      entry.set("embedding", chunk.embedding).set("head", chunk.head);
      int const found = layers_found(c, headers, chunk);
      Index const expected = extent(chunk.decoder);
      entry.set("layers_found", found < 0 ? Json() : Json(found));
      if (found >= 0 && found != expected)
        mismatches.push(fmt::format(
            "pp {} vpp {}: args give {}, the file has {}. State how the layers are spread.",
            chunk.rank, chunk.rank_chunk, counted(expected, "decoder layer"), found));
      result.push(std::move(entry));
    }
  } catch (Error const& error) {
    mismatches.push(error.sentence());
    return {};
  }
  return result;
}

Json optimizer_json(Directory const& directory, Headers headers) {
  bool distributed = !directory.optimizer_only.empty();
  bool of_data_ranks = !directory.optimizer_only.empty();
  bool layer_wise = false;
  for (auto const& shard : directory.shards)
    for (auto const& file : shard.files) {
      distributed = distributed || file == "distrib_optim.pt" || file == "optim.pt";
      of_data_ranks = of_data_ranks || file == "optim.pt";
      layer_wise = layer_wise || file.starts_with("layer_wise_optimizer_");
    }
  bool const inside = std::any_of(headers.begin(), headers.end(), [](ShardHeader const* h) {
    return h != nullptr && h->has_optimizer;
  });
  Json result = Json::object();
  result.set("kind", distributed  ? "distributed"
                     : layer_wise ? "layer-wise"
                     : inside     ? "inline"
                                  : "none");
  result.set("data_parallel_size", fact(first_args(headers), "data_parallel_size"));
  result.set("resharded", (distributed || inside) && !layer_wise && !of_data_ranks);
  return result;
}

}  // namespace

std::string report_value(Json const& value) {
  if (value.is_null()) return "-";
  if (auto const* word = value.text()) {
    auto const quoted = json_quoted(*word);
    return quoted.substr(1, quoted.size() - 2);
  }
  std::string out;
  if (auto const* items = value.items()) {
    for (auto const& item : *items) out += (out.empty() ? "" : ", ") + report_value(item);
    return value.items()->empty() ? "-" : "[" + out + "]";
  }
  if (auto const* members = value.members()) {
    auto const* source = value.find("source");
    auto const* number = value.find("value");
    if (source != nullptr && number != nullptr)
      return fmt::format("{} ({})", report_value(*number), report_value(*source));
    for (auto const& [key, member] : *members)
      out += (out.empty() ? "" : ", ") + key + " " + report_value(member);
    return out;
  }
  return value.dump();
}

std::vector<ShardFacts> shard_facts(Directory const& directory, Headers headers) {
  std::vector<ShardFacts> facts;
  for (std::size_t i = 0; i < directory.shards.size(); ++i) {
    auto const& shard = directory.shards[i];
    std::optional<ArgsSizes> args;
    std::optional<KeySummary> keys;
    if (i < headers.size() && headers[i] != nullptr) {
      if (headers[i]->args.members() != nullptr) {
        refuse_weight_sharding(headers[i]->args, shard.path.string());
        args = args_sizes(headers[i]->args, shard.path.string());
      }
      keys = summarize_keys(*headers[i]);
    }
    facts.push_back(facts_of(shard, args, keys));
  }
  return facts;
}

ShardFacts facts_of(Shard const& shard, std::optional<ArgsSizes> const& args,
                    std::optional<KeySummary> const& keys) {
  return {.name = shard.name,
          .numbers = shard.numbers,
          .has_model_file = !shard.model_file.empty(),
          .args = args,
          .keys = keys};
}

Json inspect_json(Directory const& directory, Classification const& classification,
                  Headers headers) {
  Json mismatches = Json::array();
  for (auto const& mismatch : classification.mismatches) mismatches.push(mismatch.sentence);
  Json const pipeline = pipeline_json(classification, headers, mismatches);
  Json notes = texts(directory.notes);
  for (auto const& note : classification.notes) notes.push(note);
  bool const rng = std::any_of(headers.begin(), headers.end(),
                               [](ShardHeader const* h) { return h != nullptr && h->has_rng; });
  Json report = Json::object();
  report.set("layout_class", text(classification.layout_class));
  report.set("reason", classification.reason);
  report.set("expected_pattern", classification.expected_pattern);
  report.set("loader", text(classification.loader));
  report.set("sizes", sizes_json(classification));
  report.set("found", found_json(directory, classification));
  report.set("mismatches", std::move(mismatches));
  report.set("notes", std::move(notes));
  report.set("model", model_json(headers, classification));
  report.set("pp_layout", pipeline);
  report.set("optimizer", optimizer_json(directory, headers));
  report.set("rng", rng);
  return report;
}

std::string inspect_text(Json const& report) {
  std::string out;
  for (auto const& [field, value] : *report.members()) {
    if (field == "mismatches" || field == "notes") continue;
    auto const line = [&](std::string_view label, std::string_view content) {
      out += inspect_line(label, content);
    };
    auto const* items = value.items();
    auto const* members = value.members();
    if (items != nullptr && !items->empty()) {
      for (std::size_t i = 0; i < items->size(); ++i)
        line(i == 0 ? std::string_view(field) : "", report_value((*items)[i]));
    } else if (members != nullptr && !members->empty()) {
      bool first = true;
      for (auto const& [key, member] : *members)
        line(first ? std::string_view(field) : "",
             fmt::format("{:<24}{}", key, report_value(member))),
            first = false;
    } else {
      line(field, report_value(value));
    }
  }
  return out;
}

}  // namespace reshard::megatron
