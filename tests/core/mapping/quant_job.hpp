#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/mapping/quant_finder.hpp"

namespace reshard::test {

using Lines = std::vector<std::string>;
using Table = std::map<std::string, FoundTensor>;

inline constexpr char const* definitions = R"(
let = { L = 3, M = 0 }
places = { decoder = "L" }
axes = { hidden = 64, inter = 32, expert = 4, layer = 3, vocab = 8 }
rules = { tp = ["inter"], ep = ["expert"], pp = ["decoder"] }
[tensors]
"" = ["embed: vocab hidden", "head: vocab hidden"]
layer = ["ffn.gate: inter hidden", "ffn.up: inter hidden", "down: hidden inter", "norm: hidden"]
"layer expert" = ["experts.up: inter hidden"]
[quant.tiles]
values = { name = "weight", dtype = ["F8_E4M3"], blocks = [1, 1] }
scale = { name = "weight_scale_inv", dtype = ["F32", "BF16"], blocks = [16, 16] }
input_scale = { name = "input_scale", dtype = ["F32"], blocks = ["all", "all"], optional = true }
[quant.packed]
values = { name = "weight", dtype = ["U8"], blocks = [1, 2] }
scale = { name = "weight_scale", dtype = ["F8_E4M3"], blocks = [1, 16] }
shape = { name = "weight_shape", dtype = ["I64"], blocks = ["all", "all"], vector = 2 }
[quant.whole]
values = { name = "weight", dtype = ["F8_E4M3"], blocks = [1, 1] }
scale = { name = "weight_scale", dtype = ["F32"], blocks = ["all", "all"] }
[quant.beside]
most = { name = "weight_quantizer.most", dtype = ["F32"], blocks = ["all", "all"], global_blocks = ["all", "one"], fused = true }
most_row = { name = "weight_quantizer.most", dtype = ["F32"], blocks = [1, "one"], fused = true }
input = { name = "input_quantizer.scale", dtype = ["F32"], blocks = ["all", 1], fused = true }
)";

inline constexpr char const* family = R"(
[stored]
"embed.weight" = "embed: vocab hidden"
"head.weight" = "head: vocab hidden"
"l.{layer}.gate.weight" = { is = "ffn.gate: inter hidden", or = ["l.{layer}.w1.weight"] }
"l.{layer}.up.weight" = "ffn.up: inter hidden"
"l.{layer}.down.weight" = "down: hidden inter"
"l.{layer}.norm.weight" = "norm: hidden"
"l.{layer}.e.{expert}.up.weight" = "experts.up: inter hidden"
)";

/// Fused, and experts numbered in the file.
inline constexpr char const* fused = R"(
[stored]
"embed.weight" = { is = "embed: vocab hidden", at = "E" }
"head.weight" = { is = "head: vocab hidden", at = "L" }
"d.{decoder=layer}.fc1.weight" = "ffn: (gate: inter | up: inter) hidden"
"d.{decoder=layer}.fc2.weight" = "down: hidden inter"
"d.{decoder=layer}.norm.weight" = "norm: hidden"
"d.{decoder=layer}.up.weight{expert}" = "experts.up: inter hidden"
)";

/// Layers and experts in front.
inline constexpr char const* stacked = R"(
[stored]
"embed.weight" = "embed: vocab hidden"
"head.weight" = "head: vocab hidden"
"d.fc1.weight" = "ffn: (gate: inter | up: inter) hidden"
"d.fc2.weight" = "down: hidden inter"
"d.norm.weight" = "norm: hidden"
"d.experts.weight" = "experts.up: inter hidden"
)";

class Job {
 public:
  explicit Job(std::string const& stored, SideOptions options = {})
      : map(parse_map_file(definitions + stored, "m.toml")),
        model(map, map, {Json::object(), "facts", 0}),
        options_(std::move(options)) {
    model.set_schemes(evaluate_schemes(map, model));
    make_side();
  }

  Job(Job const&) = delete;
  Job& operator=(Job const&) = delete;

  void make_side() { side.emplace(model, map, options_); }
  std::vector<StoredName> names(PipelineChunk const* chunk = nullptr) const {
    return side->names(chunk);
  }
  StoredName name(std::string const& text, PipelineChunk const* chunk = nullptr) const {
    for (StoredName& name : names(chunk))
      if (name.name == text) return name;
    ADD_FAILURE() << "no name " << text;
    return {};
  }
  TensorId tensor(std::string const& name) const { return model.find_tensor(name).value(); }
  bool exists(std::string const& name) const {
    std::optional<TensorId> const found = model.find_tensor(name);
    return found && model.exists(*found);
  }

  MapFile map;
  Model model;
  std::optional<Side> side;

 private:
  SideOptions options_;
};

inline FindTensor find_in(Table const& table) {
  return [&table](std::string const& name) {
    auto const found = table.find(name);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  };
}

/// Every stored weight of the map as BF16.
inline Table plain(Job const& job) {
  Table table;
  for (StoredName const& name : job.names())
    table[name.name] = {DType::bf16, job.side->shape(name)};
  return table;
}

inline void add_tiles(Table& table, std::string const& weight, std::vector<Index> shape) {
  table[weight + ".weight"] = {DType::f8_e4m3, shape};
  for (Index& extent : shape) extent /= 16;
  table[weight + ".weight_scale_inv"] = {DType::f32, shape};
}

inline void add_packed(Table& table, std::string const& weight, Index rows, Index columns) {
  table[weight + ".weight"] = {DType::u8, {rows, columns / 2}};
  table[weight + ".weight_scale"] = {DType::f8_e4m3, {rows, columns / 16}};
  table[weight + ".weight_shape"] = {DType::i64, {2}};
}

inline void find_and_apply(Job& job, Table const& table) {
  QuantFinder finder(job.model, *job.side);
  finder.look({}, job.names(), find_in(table), "folder");
  EXPECT_TRUE(finder.found());
  finder.apply(job.model);
  job.make_side();
}

inline Lines stored_names(Job const& job) {
  Lines result;
  for (StoredName const& name : job.names()) result.push_back(name.name);
  std::ranges::sort(result);
  return result;
}

inline Lines keys_of(Table const& table) {
  Lines result;
  for (auto const& [name, found] : table) result.push_back(name);
  return result;
}

/// Every tensor that the model has is held once.
inline void expect_tiled(Job const& job) {
  std::vector<std::vector<Piece>> pieces(job.model.tensors().size());
  for (StoredName const& name : job.names())
    for (Piece& piece : job.side->pieces(name, {}))
      pieces[index(piece.tensor)].push_back(std::move(piece));
  for (std::size_t t = 0; t < pieces.size(); ++t) {
    EXPECT_EQ(pieces[t].empty(), !job.model.exists(TensorId(t)))
        << job.model.tensors()[t].name.text();
    if (!job.model.exists(TensorId(t))) continue;
    auto const fault = tile(pieces[t], job.model.domain(job.model.tensors()[t]), job.model.axes());
    EXPECT_FALSE(fault) << job.model.tensors()[t].name.text() << ": " << fault->holders << " hold "
                        << fault->where;
  }
}

inline std::string shown(Job const& job, std::string const& tensor) {
  std::string text;
  for (LogicalAxis const& axis : job.model.tensor(job.tensor(tensor)).axes) {
    text += (text.empty() ? "" : " ") + job.model.axes()[axis.axis].name;
    if (axis.div > 1) text += fmt::format("/{}", axis.div);
  }
  return text;
}

template <class Work>
std::string refusal(Work&& work, ErrorKind kind) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind) << error.sentence();
    return error.sentence();
  }
  return "no error";
}

}  // namespace reshard::test
