#include "stages/plan/source/names/mlite_keys.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "core/base/tables/counted.hpp"
#include "stages/plan/source/names/mlite_words.hpp"

namespace reshard {
namespace {

using mlite::embeddings;
using mlite::layers;
using mlite::take;
using mlite::take_number;

/// A pipeline stage's part of the model, in model order.
struct Part {
  Index chunk = 0;
  Index stage = 0;
  auto operator<=>(Part const&) const = default;
};

/// A key taken apart.
struct MliteKey {
  bool staged = false;  ///< it names its stage
  Part part;
  std::optional<Index> layer;
  std::string_view rest;  ///< behind the layer number, or behind the prefix
};

/// "model.…", "model_pp1.…"; with several chunks to a stage "model_pp1.0.…", or "model_pp1_vpp0.…"
/// and, without stages, "model0.…".
std::optional<MliteKey> taken_apart(std::string_view key) {
  MliteKey result;
  if (!take(key, "model")) return std::nullopt;
  if (take(key, "_pp")) {
    std::optional<Index> const stage = take_number(key);
    if (!stage) return std::nullopt;
    result.part.stage = *stage;
    result.staged = true;
    if (take(key, "_vpp")) {
      std::optional<Index> const chunk = take_number(key);
      if (!chunk) return std::nullopt;
      result.part.chunk = *chunk;
    }
  } else if (std::optional<Index> const chunk = take_number(key)) {
    result.part.chunk = *chunk;
  }
  if (!take(key, ".")) return std::nullopt;
  std::string_view behind = key;
  if (std::optional<Index> const chunk = take_number(behind); chunk && take(behind, ".")) {
    result.part.chunk = *chunk;
    key = behind;
  }
  behind = key;
  if (take(behind, layers)) result.layer = take_number(behind);
  result.rest = result.layer ? behind : key;
  return result;
}

class Stages {
 public:
  Stages(StoredView::Table const& keys, std::string const& place) : place_(place) {
    for (auto const& [key, at] : keys) {
      std::optional<MliteKey> const apart = taken_apart(key);
      if (!apart) continue;
      std::string& one = apart->staged ? staged_ : unstaged_;
      if (one.empty() || key < one) one = key;
      std::set<Index>& of_part = layers_[apart->part];
      if (apart->layer) of_part.insert(*apart->layer);
    }
    if (!staged_.empty() && !unstaged_.empty())
      fail(ErrorKind::source,
           "{}: '{}' names a pipeline stage, and '{}' does not. Set source.prefix, or use the "
           "checkpoint of one run.",
           place_, staged_, unstaged_);
    count();
  }

  std::string name(std::string const& key) const {
    std::optional<MliteKey> const apart = taken_apart(key);
    if (!apart) return key;
    if (!apart->layer) return std::string(apart->rest);
    return fmt::format("{}{}{}", layers, first_.at(apart->part) + *apart->layer, apart->rest);
  }

 private:
  void count() {
    Part last;
    for (auto const& [part, numbers] : layers_)
      last = {std::max(last.chunk, part.chunk), std::max(last.stage, part.stage)};
    Index first = 0;
    for (Part part; part.chunk <= last.chunk && !layers_.empty();
         part = part.stage < last.stage ? Part{part.chunk, part.stage + 1}
                                        : Part{part.chunk + 1, 0}) {
      auto const found = layers_.find(part);
      if (found == layers_.end())
        fail(ErrorKind::source,
             "{}: has keys of {}, but no keys of {}. The save was interrupted, or a part of it is "
             "missing: restore it, or choose another save.",
             place_, shown(last), shown(part));
      auto const held = static_cast<Index>(found->second.size());
      if (held > 0 && *found->second.rbegin() != held - 1)
        fail(ErrorKind::source,
             "{}: {} has {}, and the highest number is {}: layers are missing. The save "
             "was interrupted: choose another one.",
             place_, shown(part), counted(held, "layer"), *found->second.rbegin());
      first_[part] = first;
      first += held;
    }
  }

  std::string shown(Part const& part) const {
    std::string const stage =
        staged_.empty() ? "the model" : fmt::format("stage model_pp{}", part.stage);
    return part.chunk > 0 ? fmt::format("{}, chunk {}", stage, part.chunk) : stage;
  }

  std::string const& place_;
  std::string staged_;
  std::string unstaged_;
  std::map<Part, std::set<Index>> layers_;
  std::map<Part, Index> first_;
};

}  // namespace

std::string mlite_key(std::string const& name, std::vector<PipelineChunk> const& chunks) {
  if (chunks.size() <= 1) return "model." + name;
  std::string_view rest = name;
  bool const of_layer = take(rest, layers);
  std::optional<Index> const layer = of_layer ? take_number(rest) : std::nullopt;
  for (PipelineChunk const& chunk : chunks) {
    Index const local = layer ? position_of(chunk.decoder, *layer) : -1;
    if (local >= 0) return fmt::format("model_pp{}.{}{}{}", chunk.rank, layers, local, rest);
  }
  bool const first = std::ranges::find(embeddings, name) != embeddings.end();
  return fmt::format("model_pp{}.{}", first ? 0 : chunks.back().rank, name);
}

StoredView::Table without_stages(StoredView::Table const& keys, std::string const& place) {
  Stages const stages(keys, place);
  StoredView::Table names;
  std::map<std::string, std::string> twice;
  for (auto const& [key, at] : keys) {
    std::string const name = stages.name(key);
    if (!names.emplace(name, at).second) twice.emplace(name, key);
  }
  if (twice.empty()) return names;
  fail(
      ErrorKind::source,
      "{}: '{}' is in the checkpoint for several pipeline stages ('{}' among them), and only one can be read. Save it again.",
      place, twice.begin()->first, twice.begin()->second);
}

}  // namespace reshard
