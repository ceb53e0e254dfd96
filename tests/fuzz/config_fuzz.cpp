// config.json: changing its text gives the text of the changed config, and changes that change
// nothing keep every byte.

#include <string>
#include <utility>
#include <vector>

#include "core/formats/huggingface/config/config.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace reshard {
namespace {

using huggingface::ConfigPatch;

ConfigPatch setting(std::vector<std::string> path, Json value) {
  ConfigPatch patch{std::move(path), std::nullopt};
  patch.value.emplace(
      std::move(value));  // in place: moving a Json into an optional warns falsely under GCC 12
  return patch;
}

/// Sets, nests and removes members, one that is there and others. A path through a member that is
/// no object replaces it.
std::vector<ConfigPatch> patches_for(Json const& config, std::size_t choice) {
  auto const& members = *config.members();
  if (members.empty())
    return {setting({"new"}, Json(1)),
            setting({"outer", "inner"}, Json("x\n")),
            {{"absent"}, std::nullopt}};
  auto const& [key, value] = members[choice % members.size()];
  std::vector<ConfigPatch> patches = {setting({"new"}, Json(1)),
                                      setting({key}, Json("set")),
                                      setting({key, "inner"}, Json::array()),
                                      {{key}, std::nullopt}};
  if (value.members() == nullptr || value.members()->empty()) return patches;
  std::string const& inner = (*value.members())[choice % value.members()->size()].first;
  patches.push_back({{key, inner}, std::nullopt});
  patches.push_back(setting({key, inner, "deep"}, Json(true)));
  return patches;
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  std::string const text(fuzz::text_of(data, size));
  auto const config =
      fuzz::accepted(ErrorKind::source, [&] { return huggingface::parse_config(text, "fuzz"); });
  if (!config || text.empty()) return 0;
  FUZZ_EXPECT(huggingface::patched_config_text(text, {}, "fuzz") == text);
  for (ConfigPatch const& patch : patches_for(*config, size)) {
    // One level more than the text may be too deep.
    auto const patched = fuzz::attempt(ErrorKind::source, [&] {
      return huggingface::patched_config_text(text, {&patch, 1}, "fuzz");
    });
    if (!patched) continue;
    auto const again = fuzz::attempt(
        ErrorKind::source, [&] { return huggingface::parse_config(*patched, "patched"); });
    FUZZ_EXPECT(again && *again == huggingface::patched_config(*config, {&patch, 1}));
  }
  return 0;
}
