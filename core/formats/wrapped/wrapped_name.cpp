#include "core/formats/wrapped/wrapped_name.hpp"

#include <vector>

#include <fmt/ranges.h>

#include "core/base/text/text.hpp"

namespace reshard {
namespace {

using Kind = WrappedName::Kind;

constexpr std::string_view root = "base_model.model.";

std::string joined(std::vector<std::string_view> const& words) {
  return fmt::format("{}", fmt::join(words, "."));
}

}  // namespace

WrappedName parse_wrapped(std::string_view name) {
  WrappedName result;
  std::size_t at = name.find(root);
  while (at != std::string_view::npos && at > 0 && name[at - 1] != '.')
    at = name.find(root, at + 1);
  if (at != std::string_view::npos) {
    result.rooted = true;
    result.before = name.substr(0, at);
    name.remove_prefix(at + root.size());
  }
  std::vector<std::string_view> const words = dotted_parts(name);
  std::vector<std::string_view> base;  // words that the base model has
  std::vector<std::string_view> peft;  // and those that peft's own file has
  auto const wrap = [&](Kind kind) {
    result.kind = kind;
    if (result.wrapped.empty()) result.wrapped = joined(base);
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string_view const word = words[i];
    auto const ends_with = [&](std::string_view last) {
      return i + 3 == words.size() && words[i + 2] == last;
    };
    bool const named = i + 2 == words.size();  // with the adapter's name alone
    if (word == "base_layer" || word == "token_adapter") {
      wrap(word == "base_layer" ? Kind::base : result.kind);
      peft.push_back(word);
      continue;
    }
    if (word == "original_module") {
      wrap(Kind::original);
      continue;
    }
    if (word == "modules_to_save" && i + 2 < words.size()) {
      wrap(Kind::trained);
      result.adapter = words[++i];
      continue;
    }
    if (!word.starts_with("lora_") && word != "trainable_tokens_delta") {
      base.push_back(word);
      peft.push_back(word);
      continue;
    }
    bool const linear = word == "lora_A" || word == "lora_B";
    bool const tables = word == "lora_embedding_A" || word == "lora_embedding_B";
    bool const magnitude = word == "lora_magnitude_vector" && (named || ends_with("weight"));
    wrap(linear && ends_with("weight") ? Kind::matrix
         : magnitude                   ? Kind::magnitude
         : (linear && ends_with("bias")) || (named && (tables || !word.starts_with("lora_")))
             ? Kind::further
             : Kind::unknown);
    peft.push_back(word);
    if (linear && i + 3 == words.size()) peft.push_back(words[i + 2]);
    if (i + 1 < words.size()) result.adapter = words[i + 1];
    break;
  }
  result.base = joined(base);
  result.peft = std::string(root) + joined(peft);
  if (result.kind == Kind::trained) result.peft = std::string(root) + result.base;
  return result;
}

}  // namespace reshard
