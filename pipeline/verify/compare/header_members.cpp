#include "pipeline/verify/compare/header_members.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/format.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Values by the names of members.
using Members = std::map<std::string, std::set<std::string>>;

/// The elements of a JSON list; a text of another kind alone.
std::vector<std::string> values_in(std::string const& text) {
  Json list;
  if (!text.starts_with('[') || capture([&] { list = parse_json(text, "a header"); }) ||
      list.items() == nullptr)
    return {text};
  std::vector<std::string> values;
  for (Json const& item : *list.items())
    values.push_back(item.text() != nullptr ? *item.text() : item.dump());
  return values;
}

/// One rank reads headers; what it answers is small.
Json metadata_of(fs::path const& file) {
  std::string const text = seen("__metadata__ of", file, [&] {
    Json members = Json::object();
    for (auto const& [name, value] :
         safetensors::read_header(File::open_for_reading(file)).metadata)
      members.set(name, value);
    return members.dump();
  });
  return parse_json(text, file.string());
}

Members members_of(Checkpoint const& checkpoint) {
  Members members;
  for (std::size_t f = 0; f < checkpoint.own_files(); ++f) {
    Json const metadata = metadata_of(checkpoint.files[f]);
    for (auto const& [name, value] : *metadata.members())
      if (name != "format")
        for (std::string const& one : values_in(*value.text())) members[name].insert(one);
  }
  return members;
}

/// The stored tensors of both sides.
class StoredNames {
 public:
  StoredNames(Checkpoint const& a, Checkpoint const& b) {
    for (Checkpoint const* checkpoint : {&a, &b})
      for (StoredTensor const& tensor : checkpoint->stored.tensors)
        names_.insert(tensor.name.text());
  }

  /// Whether the text is the name of a tensor, or of one in a module that has any.
  bool names_tensor(std::string const& text) const {
    std::size_t const dot = text.rfind('.');
    std::string const start = dot == std::string::npos ? text : text.substr(0, dot + 1);
    auto const at = names_.lower_bound(start);
    return at != names_.end() && at->starts_with(start);
  }

 private:
  std::set<std::string> names_;
};

/// Many of them as one.
void shorten(std::vector<ConfigDifference>& differences) {
  constexpr std::size_t most = 4;
  if (differences.size() <= most) return;
  std::vector<std::string> names;
  for (ConfigDifference const& one : differences) names.push_back(one.key);
  std::string const text =
      fmt::format("{} members that describe tensors ({})", names.size(), listed(names, 2));
  auto const lacks = [&](std::string ConfigDifference::*side) {
    return std::ranges::all_of(differences, [&](auto const& one) { return (one.*side).empty(); });
  };
  ConfigDifference const all{"__metadata__", lacks(&ConfigDifference::a) ? "" : text,
                             lacks(&ConfigDifference::b) ? "" : "other ones"};
  differences = {all};
}

}  // namespace

HeaderMembers compare_header_members(Checkpoint const& a, Checkpoint const& b) {
  HeaderMembers result;
  for (Checkpoint const* checkpoint : {&a, &b})
    if (checkpoint->format->id() != FormatId::huggingface) return result;
  Members const in_a = members_of(a);
  Members const in_b = members_of(b);
  if (in_a == in_b) return result;
  StoredNames const names(a, b);
  std::map<std::string, std::pair<std::set<std::string>, std::set<std::string>>> both;
  for (auto const& [name, values] : in_a) both[name].first = values;
  for (auto const& [name, values] : in_b) both[name].second = values;
  for (auto const& [name, values] : both) {
    auto const& [first, second] = values;
    if (first == second) continue;
    auto const shown = [](std::set<std::string> const& texts) {
      return listed(std::vector<std::string>(texts.begin(), texts.end()), 2);
    };
    bool const of_tensors =
        names.names_tensor(name) ||
        std::ranges::any_of(first, [&](auto const& text) { return names.names_tensor(text); }) ||
        std::ranges::any_of(second, [&](auto const& text) { return names.names_tensor(text); });
    if (of_tensors)
      result.differences.push_back({"__metadata__." + name, shown(first), shown(second)});
    else
      result.others.push_back(name);
  }
  shorten(result.differences);
  return result;
}

}  // namespace reshard
