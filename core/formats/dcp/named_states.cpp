#include "core/formats/dcp/named_states.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include <fmt/ranges.h>

#include "core/formats/run/state_inventory.hpp"

namespace reshard::dcp {
namespace {

constexpr std::string_view state_word = "state.";
constexpr std::string_view step_slot = "step";

/// torchtitan's fused parameter, whose weight it stores as the three that follow. Its rows are, for
/// each head of keys, those of its queries, of the key and of the value.
constexpr std::string_view fused_part = "wqkv.";
constexpr std::array<std::string_view, 3> parts_of_fused{"wq.", "wk.", "wv."};

/// The name of a part of a fused parameter; "" if the name is not of one.
std::string part_of(std::string_view parameter, std::string_view part) {
  std::size_t const dot = parameter.rfind('.');
  if (dot == std::string_view::npos || !parameter.substr(0, dot + 1).ends_with(fused_part))
    return "";
  std::size_t const at = dot + 1 - fused_part.size();
  if (at > 0 && parameter[at - 1] != '.') return "";
  return fmt::format("{}{}{}", parameter.substr(0, at), part, parameter.substr(dot + 1));
}

/// One interpretation of a name as that of state.
struct Reading {
  std::string_view place;      ///< before "state."
  std::string_view parameter;  ///< between that and the last dot
  std::string_view slot;       ///< behind it
};

std::vector<Reading> readings_of(std::string_view name) {
  std::vector<Reading> result;
  std::size_t const dot = name.rfind('.');
  if (dot == std::string_view::npos) return result;
  std::string_view const slot = name.substr(dot + 1);
  if (slot == "weight" || slot == "bias") return result;  // of a module with the name `state`
  for (std::size_t at = name.find(state_word); at < dot; at = name.find(state_word, at + 1)) {
    std::size_t const begin = at + state_word.size();
    if ((at == 0 || name[at - 1] == '.') && begin < dot)
      result.push_back({name.substr(0, at), name.substr(begin, dot - begin), slot});
  }
  return result;
}

struct Candidate {
  std::size_t tensor = 0;
  std::vector<Reading> readings;
};

class Matcher {
 public:
  Matcher(StoredTable const& table, std::string_view prefix) : table_(table), prefix_(prefix) {}

  NamedStates run() {
    sort_names();
    if (candidates_.empty()) return std::move(result_);
    choose_trainer();
    for (Candidate const& candidate : candidates_) match(candidate);
    settle_rest();
    return std::move(result_);
  }

 private:
  std::string_view name(std::size_t tensor) const { return table_.tensors.name(tensor); }

  void sort_names() {
    for (std::size_t t = 0; t < table_.tensors.size(); ++t) {
      std::vector<Reading> readings = readings_of(name(t));
      if (readings.empty())
        weights_.emplace(name(t), t);
      else
        candidates_.push_back({t, std::move(readings)});
    }
  }

  /// Chooses the prefix of weights' names before those of parameters: of the candidates of each
  /// parameter the one with the most parameters.
  void choose_trainer() {
    std::unordered_map<std::string_view, std::vector<std::string_view>> by_ending;
    for (auto const& [weight, tensor] : weights_)
      if (weight.starts_with(prefix_))
        for (std::size_t at = 0; at != std::string_view::npos;) {
          by_ending[weight.substr(at)].push_back(weight);
          at = weight.find('.', at);
          if (at != std::string_view::npos) ++at;
        }
    std::map<std::string_view, std::pair<std::size_t, std::string_view>> votes;
    for (Candidate const& candidate : candidates_)
      for (Reading const& reading : candidate.readings)
        if (auto const found = by_ending.find(reading.parameter); found != by_ending.end())
          for (std::string_view const weight : found->second) {
            auto& [count, example] =
                votes[weight.substr(0, weight.size() - reading.parameter.size())];
            if (count++ == 0) example = weight;
          }
    std::size_t most = 0;
    for (auto const& [trainer, vote] : votes) most = std::max(most, vote.first);
    std::vector<std::string_view> best;
    for (auto const& [trainer, vote] : votes)
      if (vote.first == most) {
        best.push_back(vote.second);
        result_.trainer = trainer;
      }
    known_ = best.size() == 1;
    if (best.size() > 1)
      note(fmt::format(
          "optimizer state such as '{}' may belong to '{}' or to '{}'. Set source.prefix to what "
          "the names of one model begin with",
          name(candidates_.front().tensor), best[0], best[1]));
  }

  void match(Candidate const& candidate) {
    std::vector<std::pair<std::string_view, Reading>> found;
    for (Reading const& reading : candidate.readings) {
      auto const weight = weights_.find(result_.trainer + std::string(reading.parameter));
      if (known_ && weight != weights_.end()) found.emplace_back(weight->first, reading);
    }
    if (found.size() > 1)
      note(
          fmt::format("'{}' may be state of '{}' or of '{}': its name fits both. Change one of "
                      "these names",
                      name(candidate.tensor), found[0].first, found[1].first));
    if (found.empty() && known_)
      for (Reading const& reading : candidate.readings)
        if (std::vector<std::size_t> const parts = parts_of(reading.parameter); !parts.empty())
          return add_fused(candidate.tensor, reading, parts);
    if (found.size() != 1) return rest_.push_back(candidate);
    auto const& [weight, reading] = found.front();
    add(candidate.tensor, weight, reading, table_.tensors.shape(weights_.find(weight)->second));
  }

  /// The weights of the parts of a fused parameter; empty if it is none, or they are not there.
  std::vector<std::size_t> parts_of(std::string_view parameter) const {
    std::vector<std::size_t> result;
    for (std::string_view const part : parts_of_fused) {
      std::string const one = part_of(parameter, part);
      auto const weight = weights_.find(result_.trainer + one);
      if (one.empty() || weight == weights_.end()) return {};
      result.push_back(weight->second);
    }
    return result;
  }

  void add_fused(std::size_t tensor, Reading const& reading,
                 std::vector<std::size_t> const& parts) {
    std::vector<Index> shape = table_.tensors.shape(parts.front());
    for (std::size_t p = 1; p < parts.size() && !shape.empty(); ++p) {
      SharedShape const part = table_.tensors.shape(parts[p]);
      if (!part.empty()) shape.front() += part[0];
    }
    std::string whole = result_.trainer + std::string(reading.parameter);
    auto const [at, is_new] = fused_.try_emplace(whole, std::string_view());
    if (is_new) at->second = result_.made.emplace_back(std::move(whole));
    add(tensor, at->second, reading, shape);
  }

  /// `expected` is the shape of the weight.
  void add(std::size_t tensor, std::string_view weight, Reading const& reading,
           SharedShape const& expected) {
    result_.places.insert(reading.place);
    if (!weight.starts_with(prefix_)) return result_.elsewhere.push_back(tensor);
    auto const [known, is_new] = held_.try_emplace({weight, reading.slot}, tensor);
    bool const step = reading.slot == step_slot;
    SharedShape const shape = table_.tensors.shape(tensor);
    if (!is_new)
      note(fmt::format("'{}' and '{}' are the same state of '{}'. Remove one of them",
                       name(known->second), name(tensor), weight));
    else if (!step && shape != expected)
      note(
          fmt::format("'{}' is [{}], and its weight '{}' is [{}]. Megatron's optimizers cannot "
                      "hold state of another shape: remove it",
                      name(tensor), fmt::join(shape, ", "), weight, fmt::join(expected, ", ")));
    else
      return (step ? result_.steps : result_.states).push_back({weight, reading.slot, tensor});
    result_.strays.push_back(tensor);
  }

  /// Classifies names without a weight: as state if they have its form.
  void settle_rest() {
    for (Candidate const& candidate : rest_) {
      bool const beside = std::ranges::any_of(candidate.readings, [&](Reading const& reading) {
        return result_.places.contains(reading.place);
      });
      if (!beside && !is_optimizer_key(name(candidate.tensor))) continue;
      result_.strays.push_back(candidate.tensor);
      if (weights_.empty())
        note(
            "holds optimizer state alone: weights are in another folder, and one job reads one. "
            "Save both in one folder, or convert the weights");
      else
        note(fmt::format(
            "'{}' is optimizer state, and no weight has the name of its parameter: check the "
            "names with `reshard ls`",
            name(candidate.tensor)));
    }
    for (auto const& [weight, tensor] : weights_)
      if (is_named_setting(weight, result_.places)) result_.settings.push_back(tensor);
    std::ranges::sort(result_.settings);
  }

  /// The first of them.
  void note(std::string sentence) {
    if (result_.fault.empty()) result_.fault = std::move(sentence);
  }

  StoredTable const& table_;
  std::string_view prefix_;
  std::unordered_map<std::string_view, std::size_t> weights_;  ///< names that are not of state
  std::vector<Candidate> candidates_;
  std::vector<Candidate> rest_;
  std::unordered_map<std::string, std::string_view> fused_;  ///< in NamedStates::made
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> held_;
  bool known_ = false;  ///< whether the prefix of parameters' names is known
  NamedStates result_;
};

}  // namespace

NamedStates named_states(StoredTable const& table, std::string_view prefix) {
  return Matcher(table, prefix).run();
}

bool is_named_setting(std::string_view name, std::set<std::string_view> const& places) {
  return std::ranges::any_of(places, [&](std::string_view place) {
    if (!name.starts_with(place)) return false;
    std::string_view const rest = name.substr(place.size());
    return rest.starts_with(settings_word) &&
           (rest.size() == settings_word.size() || rest[settings_word.size()] == '.');
  });
}

}  // namespace reshard::dcp
