#include "stages/plan/draft/name_groups.hpp"

#include <algorithm>
#include <charconv>
#include <map>

namespace reshard {
namespace {

constexpr std::size_t most_digits = 9;  // a longer number is no index

bool is_number(std::string_view word) {
  return !word.empty() && word.size() <= most_digits &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at <= name.size();) {
    std::size_t const end = std::min(name.find('.', at), name.size());
    words.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

std::string numbers_hidden(std::string_view name) {
  std::string text;
  for (std::string_view const word : words_of(name)) {
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
    for (std::string_view const word : words_of(tensor.name)) {
      if (!is_number(word)) continue;
      Index number = 0;
      std::from_chars(word.data(), word.data() + word.size(), number);
      layers = std::max(layers, number + 1);
      break;
    }
  return layers;
}

}  // namespace reshard
