#include "stages/plan/source/catalog/lacking_tensor.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"

namespace reshard {

void fail_lacking_tensor(Checkpoint const& source, std::string const& where,
                         std::string const& name, std::string const& entry,
                         std::string const& found) {
  switch (source.storage) {
    case Storage::shares:
      fail(ErrorKind::source,
           "{}: lacks '{}', which {} expects here; {}. The file is of another rank or layout, or "
           "its args or the map describe another model: compare its names with those of another "
           "rank (reshard ls), and check model.map.",
           where, name, entry, found);
    case Storage::chunks:
      fail(ErrorKind::source,
           "{}: lacks '{}', which {} expects; {}. The config or the map is of another model, or "
           "the save leaves parts of the model out, such as frozen parameters: check "
           "source.config and model.map, or keep the names with model.map = \"none\".",
           where, name, entry, found);
    case Storage::whole: break;
  }
  if (std::ranges::count(source.index.unlisted, SharedText(name)) > 0)
    fail(ErrorKind::source,
         "{}: '{}', which {} expects, is in a file, and the index does not list it. Fetch the "
         "index again, or set source.index = \"rebuild\".",
         where, name, entry);
  if (source.model.beside && !source.model.beside->unindexed.empty())
    fail(ErrorKind::source,
         "{}: lacks '{}', which {} expects. The index does not name {}, which {} in the folder: "
         "if {} of this model, set source.index = \"rebuild\".",
         where, name, entry, listed(source.model.beside->unindexed, 4),
         agreeing(source.model.beside->unindexed.size(), "is", "are"),
         agreeing(source.model.beside->unindexed.size(), "it is", "they are"));
  // Only an index can say that a tensor should be there.
  if (std::binary_search(source.index.promised.begin(), source.index.promised.end(),
                         SharedText(name)))
    fail(ErrorKind::source,
         "{}: lacks '{}', which {} expects. The index lists it, and its file does not hold it: "
         "the two are of different saves. Restore the folder from the original.",
         where, name, entry);
  fail(ErrorKind::source,
       "{}: lacks '{}', which {} expects; {}. The folder is incomplete, config.json is of "
       "another model, or the map does not describe this form of it: compare the names with "
       "those of the original (reshard ls), or name another map with model.map.",
       where, name, entry, found);
}

void check_for_prefix(Storage storage, StoredShare const& share, std::string const& name,
                      std::string const& prefix_of_source) {
  std::set<std::string_view> prefixes;
  for (auto const& [key, at] : share.tensors)
    if (key.ends_with("." + name)) prefixes.insert(key.substr(0, key.size() - name.size()));
  if (prefixes.empty()) return;
  std::string_view const prefix = *prefixes.begin();
  auto const behind = static_cast<std::size_t>(std::ranges::count_if(
      share.tensors, [&](auto const& one) { return one.first.starts_with(prefix); }));
  std::string const stored =
      fmt::format("{}: '{}' is stored as '{}{}{}', and {} of {} {} with '{}{}'.", share.where, name,
                  prefix_of_source, prefix, name, behind, counted(share.tensors.size(), "key"),
                  agreeing(behind, "begins", "begin"), prefix_of_source, prefix);
  if (storage == Storage::whole)
    fail(ErrorKind::source,
         "{} Name a map that has these names with model.map, or keep them with model.map = "
         "\"none\".",
         stored);
  fail(ErrorKind::source, "{} Set source.prefix = \"{}{}\"{}.", stored, prefix_of_source, prefix,
       behind == share.tensors.size()
           ? ""
           : "; the map does not describe the other keys, and model.unmapped = \"drop\" "
             "leaves them out");
}

void warn_of_copies(Catalog const& catalog, std::vector<std::string>& warnings) {
  std::vector<std::string> copies;
  for (TensorPieces const& tensor : catalog.tensors)
    for (std::size_t i = 0; tensor.has_copies() && i < tensor.size(); ++i)
      if (tensor.is_copy(i)) copies.push_back(catalog.blobs[tensor.blob(i)].name);
  if (!copies.empty())
    warnings.push_back(fmt::format(
        "{} is a copy of another stored tensor, according to config.json and the map. A run "
        "compares the two, and refuses the source when they differ, unless source.replicas is "
        "\"first\"",
        listed(copies, 4)));
}

}  // namespace reshard
