#include "core/formats/torch_dist/dist_objects.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/ranges.h>

#include "core/formats/megatron/mcore/root.hpp"
#include "core/formats/torch_dist/state/flat_keys.hpp"

namespace reshard {
namespace {

constexpr std::string_view state_ending = "._extra_state";
constexpr std::string_view layers = "decoder.layers.";
constexpr std::string_view dist_experts = ".mlp.experts.experts.";
constexpr std::string_view local_experts = ".mlp.experts.local_experts.";

/// The number at `at`; nullopt if a word is there.
std::optional<Index> number_at(std::string_view text, std::size_t at) {
  Index number = 0;
  std::size_t const end = std::min(text.find('.', at), text.size());
  auto const [stop, error] = std::from_chars(text.data() + at, text.data() + end, number);
  if (error != std::errc() || stop != text.data() + end) return std::nullopt;
  return number;
}

/// Takes the number behind `word` out of the text.
std::optional<Index> take_number(std::string& text, std::string_view word) {
  std::size_t const at = text.find(word);
  if (at == std::string::npos) return std::nullopt;
  auto const number = number_at(text, at + word.size());
  if (number)
    text.erase(at + word.size(), text.find('.', at + word.size()) + 1 - (at + word.size()));
  return number;
}

}  // namespace

std::optional<std::vector<Index>> parse_numbers(std::string_view text) {
  std::vector<Index> numbers;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t const end = std::min(text.find('.', at), text.size());
    Index number = 0;
    auto const [stop, error] = std::from_chars(text.data() + at, text.data() + end, number);
    if (error != std::errc() || stop != text.data() + end || number < 0) return std::nullopt;
    numbers.push_back(number);
    at = end + 1;
  }
  return numbers;
}

std::optional<ShardedObjectKey> parse_object_key(std::string_view text) {
  constexpr std::string_view shard = "/shard_";
  std::size_t const slash = text.rfind('/');
  if (slash == std::string_view::npos || !text.substr(slash).starts_with(shard))
    return std::nullopt;
  std::string_view const numbers = text.substr(slash + shard.size());
  std::size_t const line = numbers.find('_');
  if (line == std::string_view::npos) return std::nullopt;
  auto const offsets = parse_numbers(numbers.substr(0, line));
  auto const shape = parse_numbers(numbers.substr(line + 1));
  if (!offsets || !shape || offsets->size() != shape->size()) return std::nullopt;
  return ShardedObjectKey{std::string(text.substr(0, slash)), *offsets, *shape};
}

std::string text_of(ShardedObjectKey const& key) {
  return fmt::format("{}/shard_{}_{}", key.key, fmt::join(key.offsets, "."),
                     fmt::join(key.shape, "."));
}

std::optional<std::string> module_state_key(std::string_view text) {
  auto const parsed = parse_object_key(text);
  if (!parsed || !parsed->key.ends_with(state_ending)) return std::nullopt;
  std::string key = parsed->key;
  std::size_t next = 0;  // offsets of numbers in the name
  if (std::size_t const at = key.find(layers);
      at != std::string::npos && !number_at(key, at + layers.size()))
    key.insert(at + layers.size(), fmt::format("{}.", parsed->offsets[next++]));
  if (std::size_t const at = key.find(dist_experts); at != std::string::npos) {
    bool const numbered = number_at(key, at + dist_experts.size()).has_value();
    if (!numbered && next >= parsed->offsets.size()) return std::nullopt;
    std::string const number = numbered ? "" : fmt::format("{}.", parsed->offsets[next]);
    key.replace(at, dist_experts.size(), std::string(local_experts) + number);
  }
  return key;
}

std::string object_key(std::string const& module_key, ObjectForm const& form) {
  ShardedObjectKey result{module_key, {}, {}};
  if (form.stacked) {
    if (auto const layer = take_number(result.key, layers)) {
      result.offsets.push_back(*layer);
      result.shape.push_back(form.layers);
    }
  }
  if (std::size_t const at = result.key.find(local_experts);
      form.experts_named && at != std::string::npos) {
    result.key.replace(at, local_experts.size(), dist_experts);
  } else if (auto const expert = take_number(result.key, local_experts)) {
    result.key.replace(result.key.find(local_experts), local_experts.size(), dist_experts);
    result.offsets.push_back(*expert);
    result.shape.push_back(form.experts);
  }
  if (result.offsets.empty()) {
    result.offsets.push_back(0);
    result.shape.push_back(1);
  }
  return text_of(result);
}

void copy_objects(DcpTarget& target, Checkpoint const& source, ObjectForm const& form,
                  ObjectChoice const& choice, ObjectGate& gate) {
  for (StoredObject const& object : source.stored.objects) {
    if (object.name == dcp::common_key || dcp::parse_group_key(object.name)) continue;
    if (choice.drop_rng && is_run_state(object.name)) continue;
    if (choice.drop_optimizer &&
        (object.name.starts_with("optimizer.") || object.name.starts_with("chained_")))
      continue;
    auto const module_key = module_state_key(object.name);
    if (module_key && !choice.module_states) continue;
    if (!gate.admits(object)) continue;
    bool const renumbered = module_key && !megatron::behind_root(*module_key, form.root).empty();
    target.add_object(renumbered ? object_key(*module_key, form) : object.name, 0, object.item);
  }
}

void make_objects(DcpTarget& target, ExtraStates& extras, std::vector<StoredName> const& names,
                  std::string const& root) {
  std::set<std::string> made;
  // GPTModel leaves the state of its output layer out of the catalogue; hybrid models, which call
  // their last norm so, do not.
  bool const hybrid = std::ranges::any_of(names, [&](StoredName const& name) {
    return megatron::behind_root(name.name, root) == "decoder.final_norm.weight";
  });
  // TEDotProductAttention saves its state only together with its sinks (sharded_state_dict of
  // megatron.core.extensions.transformer_engine, 0.16 to 0.19).
  bool const sinks = std::ranges::any_of(names, [](StoredName const& name) {
    return name.name.ends_with(".core_attention.softmax_offset");
  });
  for (StoredName const& name : names) {
    for (std::string const& key : extras.keys_of(name.name)) {
      bool const of_output = megatron::behind_root(key, root).starts_with("output_layer.");
      bool const of_attention = key.ends_with(".core_attention._extra_state");
      if ((of_output && !hybrid) || (of_attention && !sinks) || !made.insert(key).second) continue;
      ShardedObjectKey whole{key, {}, {}};
      for (FrontAxis const& front : name.front) {
        whole.offsets.push_back(0);
        whole.shape.push_back(extent(front.runs));
      }
      if (whole.shape.empty()) {
        whole.offsets.push_back(0);
        whole.shape.push_back(1);
      }
      for (bool more = true; more;) {
        std::string const text = text_of(whole);
        target.add_object(text, 0, extras.object_bytes(module_state_key(text).value_or(key)));
        std::size_t d = whole.shape.size();
        while (d > 0 && ++whole.offsets[d - 1] == whole.shape[d - 1]) whole.offsets[--d] = 0;
        more = d > 0;
      }
    }
  }
}

}  // namespace reshard
