#include "core/formats/megatron/mcore/hybrid_pattern.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"

namespace reshard::megatron {
namespace {

constexpr char stage_bound = '|';
constexpr char depth_bound = '/';

std::string joined(std::vector<std::string> const& parts) {
  std::string result;
  for (std::string const& part : parts) result += part;
  return result;
}

}  // namespace

std::size_t HybridPattern::decoder_layers() const { return joined(stages).size(); }

int HybridPattern::depths() const {
  return static_cast<int>(std::count(behind.begin(), behind.end(), depth_bound));
}

std::optional<HybridPattern> hybrid_pattern(Json const& args) {
  for (char const* key : {"hybrid_layer_pattern", "hybrid_override_pattern"}) {
    Json const* value = args.find(key);
    if (value == nullptr || value->text() == nullptr) continue;
    std::string const& text = *value->text();
    std::size_t const end = std::min(text.find(depth_bound), text.size());
    HybridPattern result{key, {""}, text.substr(end)};
    for (char const letter : std::string_view(text).substr(0, end)) {
      if (letter == stage_bound)
        result.stages.emplace_back();
      else
        result.stages.back() += letter;
    }
    return result;
  }
  return std::nullopt;
}

std::string with_stages(HybridPattern const& pattern, std::span<int const> layers) {
  std::string const letters = joined(pattern.stages);
  std::string result;
  std::size_t at = 0;
  for (int const& count : layers) {
    if (&count != layers.data()) result += stage_bound;
    result += letters.substr(at, static_cast<std::size_t>(count));
    at += static_cast<std::size_t>(count);
  }
  RESHARD_EXPECT(at == letters.size());
  return result + pattern.behind;
}

void check_hybrid_pattern(Json const& args, std::string_view letters, std::string_view place) {
  auto const pattern = hybrid_pattern(args);
  if (!pattern) return;
  std::string const decoder = joined(pattern->stages);
  std::string const all = decoder + pattern->behind;
  for (char const letter : all)
    if (letter != depth_bound && letters.find(letter) == std::string_view::npos)
      fail(ErrorKind::source,
           "{}: args.{} = \"{}\": '{}' is not a layer that the map knows; known letters are {}. "
           "Correct the letter, or name a map that knows it with RESHARD_MAPS.",
           place, pattern->key, *args.find(pattern->key)->text(), letter, letters);
  Json const* layers = args.find("num_layers");
  if (layers == nullptr || layers->integer() == nullptr ||
      *layers->integer() == static_cast<std::int64_t>(decoder.size()))
    return;
  fail(ErrorKind::source,
       "{}: args.{} = \"{}\" has {}, and args.num_layers is {}. The pattern and "
       "the files belong to different models: correct args, or choose another save.",
       place, pattern->key, *args.find(pattern->key)->text(),
       counted(decoder.size(), "decoder layer"), *layers->integer());
}

}  // namespace reshard::megatron
