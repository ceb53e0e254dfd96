#include "stages/plan/draft/name_groups.hpp"

#include <algorithm>
#include <charconv>
#include <map>

#include "core/base/text/text.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_digits = 9;  // a longer number is no index

bool is_number(std::string_view word) {
  return !word.empty() && word.size() <= most_digits &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string numbers_hidden(std::string_view name) {
  std::string text;
  for (std::string_view const word : dotted_parts(name)) {
    if (!text.empty()) text += '.';
    text += is_number(word) ? "#" : word;
  }
  return text;
}

std::vector<NameGroup> group_names(std::span<DraftTensor const> tensors) {
  std::vector<NameGroup> groups;
  std::map<std::string, std::size_t> at;
  for (DraftTensor const& tensor : tensors) {
    std::string text = numbers_hidden(tensor.name);
    auto const [known, is_new] = at.try_emplace(text, groups.size());
    if (is_new) groups.push_back({std::move(text), 0, tensor.shape});
    NameGroup& group = groups[known->second];
    ++group.count;
    if (group.shape != tensor.shape) group.shape.reset();
  }
  return groups;
}

Index counted_layers(std::span<DraftTensor const> tensors) {
  Index layers = 0;
  for (DraftTensor const& tensor : tensors)
    for (std::string_view const word : dotted_parts(tensor.name)) {
      if (!is_number(word)) continue;
      Index number = 0;
      std::from_chars(word.data(), word.data() + word.size(), number);
      layers = std::max(layers, number + 1);
      break;
    }
  return layers;
}

}  // namespace reshard
