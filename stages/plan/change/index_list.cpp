#include "stages/plan/change/index_list.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

Index number(std::string_view word, std::string_view item, std::string const& key) {
  Index value = 0;
  while (word.starts_with(' ')) word.remove_prefix(1);
  while (word.ends_with(' ')) word.remove_suffix(1);
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || end != word.data() + word.size() || value < 0)
    fail(ErrorKind::usage,
         "{}: '{}' is neither an index nor a range. Write a list such as \"0-15, 20\".", key, item);
  return value;
}

}  // namespace

std::vector<Index> index_list(std::string_view text, Index count, std::string const& key,
                              std::string_view things) {
  std::vector<Index> result;
  for (std::string const& part : parts_between(',', text)) {
    std::string_view const item = part;
    std::size_t const dash = item.find('-');
    Index const first = number(item.substr(0, dash), item, key);
    Index const last =
        dash == std::string_view::npos ? first : number(item.substr(dash + 1), item, key);
    if (last < first || (!result.empty() && first <= result.back()))
      fail(ErrorKind::usage, "{}: '{}' does not ascend. Name each index once, the smallest first.",
           key, item);
    if (last >= count)
      fail(ErrorKind::usage,
           "{}: '{}' names number {}, and there are {} {}, counted from 0. Leave "
           "out the others.",
           key, item, last, count, things);
    for (Index i = first; i <= last; ++i) result.push_back(i);
  }
  if (result.empty())
    fail(ErrorKind::usage, "{}: the list is empty. Name at least one of the {}.", key, things);
  return result;
}

std::vector<std::vector<Index>> kept_experts(std::string_view text, Index experts,
                                             std::vector<bool> const& has_experts,
                                             std::string const& key) {
  if (experts == 0 || std::ranges::find(has_experts, true) == has_experts.end())
    fail(ErrorKind::usage, "{}: the model has no routed experts. Remove the key.", key);
  auto const layers = static_cast<Index>(has_experts.size());
  std::vector<std::vector<Index>> result(has_experts.size());
  bool const by_layer = text.find(':') != std::string_view::npos;
  std::vector<Index> all;
  if (!by_layer) all = index_list(text, experts, key, "experts");
  for (std::string const& clause :
       by_layer ? parts_between(';', text) : std::vector<std::string>()) {
    std::size_t const colon = clause.find(':');
    if (colon == std::string::npos)
      fail(ErrorKind::usage,
           "{}: '{}' names no layers. Write \"LAYERS: EXPERTS\" for each, with ';' between them.",
           key, clause);
    auto const kept = index_list(clause.substr(colon + 1), experts, key, "experts");
    for (Index const layer : index_list(clause.substr(0, colon), layers, key, "layers")) {
      auto& of_layer = result[static_cast<std::size_t>(layer)];
      if (!has_experts[static_cast<std::size_t>(layer)])
        fail(ErrorKind::usage, "{}: layer {} has no routed experts. Leave it out.", key, layer);
      if (!of_layer.empty())
        fail(ErrorKind::usage, "{}: layer {} is named twice. Name it once.", key, layer);
      of_layer = kept;
    }
  }
  std::size_t wanted = 0;
  std::size_t first = 0;
  for (std::size_t layer = 0; layer < has_experts.size(); ++layer) {
    if (!has_experts[layer]) continue;
    auto& of_layer = result[layer];
    if (!by_layer) of_layer = all;
    if (of_layer.empty())
      fail(ErrorKind::usage,
           "{}: layer {} has experts and is not named. Name every layer that has some.", key,
           layer);
    if (wanted == 0) {
      wanted = of_layer.size();
      first = layer;
    }
    if (of_layer.size() != wanted)
      fail(ErrorKind::usage,
           "{}: layer {} keeps {} experts and layer {} keeps {}. The config has one number for all "
           "layers: keep as many in each.",
           key, first, wanted, layer, of_layer.size());
  }
  return result;
}

}  // namespace reshard
