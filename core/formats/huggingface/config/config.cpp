#include "core/formats/huggingface/config/config.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard::huggingface {
namespace {

/// The words of Python's json module that JSON does not have, longest first.
constexpr std::string_view python_words[] = {"-Infinity", "Infinity", "NaN"};

/// Python's words outside strings, replaced by what transformers writes for them since version 5.
std::string strict_json(std::string_view text) {
  std::string strict;
  strict.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    auto const* const word = std::ranges::find_if(
        python_words, [&](std::string_view each) { return text.substr(i).starts_with(each); });
    if (!in_string && word != std::end(python_words)) {
      strict += fmt::format(R"({{"__float__": "{}"}})", *word);
      i += word->size();
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) strict += text[i++];
    strict += text[i++];
  }
  return strict;
}

void patch(Json& object, ConfigPatch const& change, std::size_t depth) {
  std::string const& key = change.path[depth];
  bool const last = depth + 1 == change.path.size();
  if (object.members() == nullptr) {
    if (!change.value) return;
    object = Json::object();
  }
  auto& members = *object.members();
  auto const found =
      std::ranges::find_if(members, [&](auto const& member) { return member.first == key; });
  if (found == members.end()) {
    if (!change.value) return;
    Json inner = last ? *change.value : Json::object();
    if (!last) patch(inner, change, depth + 1);
    members.emplace_back(key, std::move(inner));
  } else if (!last) {
    patch(found->second, change, depth + 1);
  } else if (change.value) {
    found->second = *change.value;
  } else {
    members.erase(found);
  }
}

}  // namespace

Json parse_config(std::string_view text, std::string_view place) {
  Json config = parse_json(strict_json(text), place);
  if (config.members() == nullptr)
    fail(ErrorKind::source, "{}: is not a JSON object. The file is damaged: download it again.",
         place);
  return config;
}

Json patched_config(Json config, std::span<ConfigPatch const> patches) {
  if (config.is_null()) config = Json::object();
  for (ConfigPatch const& change : patches) {
    RESHARD_EXPECT(!change.path.empty());
    patch(config, change, 0);
  }
  return config;
}

}  // namespace reshard::huggingface
