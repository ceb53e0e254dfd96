#include "stages/plan/config/found_prefix.hpp"

#include <algorithm>
#include <set>

#include "core/base/capture.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/formats/model_files.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/config/expected_names.hpp"
#include "stages/plan/source/names/mlite_options.hpp"

namespace reshard {
namespace {

using Names = std::set<std::string, std::less<>>;

constexpr std::size_t most_shown = 6;
/// Of the names that are missing, how many are looked for behind a prefix: a save may lack some.
constexpr std::size_t most_probes = 5;

/// config.json and the place that it has.
struct NamedConfig {
  Json config;
  std::string name;
};

NamedConfig config_of(Checkpoint const& source, PlanRequest const& request) {
  if (request.read.config.empty() && !source.model.config.is_null())
    return {source.model.config, "its config.json"};
  if (auto const files = files_of(source, request.read.config); files && !files->config.is_null())
    return {files->config, config_name_of(*files)};
  if (request.options.huggingface.reference.empty()) return {};
  huggingface::Folder const files = described_by(request.options.huggingface.reference);
  return {files.config, config_name_of(files)};
}

class PrefixFinder {
 public:
  PrefixFinder(Checkpoint const& source, PlanRequest const& request)
      : source_(source), request_(request), named_(config_of(source, request)) {}

  std::optional<FoundPrefix> run(bool keeps_names, PrefixUse use) {
    if (named_.config.is_null() || has_stages()) return std::nullopt;
    StoredView const view = source_.format->view(source_, "");
    for (auto const& [name, at] : view.weights) names_.insert(name);
    auto const bare = expected(names_);
    if (!bare || !bare->most_lack()) return std::nullopt;
    std::vector<std::string> const found = fitting(*bare);
    if (found.size() > 1)
      fail(ErrorKind::source,
           "{}: the names that {} asks for are stored several times, behind {}. Set source.prefix "
           "to the one that is meant.",
           source_.place, named_.name, listed(quoted(found), most_shown));
    if (found.empty() || (use == PrefixUse::job && loses(found.front(), keeps_names)))
      return std::nullopt;
    std::string const& prefix = found.front();
    return FoundPrefix{
        prefix,
        fmt::format("names are read behind '{}': there are those that {} asks for ({} of "
                    "{})",
                    prefix, named_.name, behind(prefix).size(), counted(names_.size(), "tensor"))};
  }

 private:
  /// Whether the map has Megatron Lite's names, which have the pipeline stage in front.
  bool has_stages() const {
    if (request_.read.map == "auto") return false;
    bool stages = false;
    (void)capture([&] {  // a map that cannot be read is told where it is applied
      MapChoice const maps =
          request_.read.library.choose(request_.read.map, named_.config, Json(), true);
      stages = maps.family && has_mlite_names(*maps.family);
    });
    return stages;
  }

  std::optional<ExpectedNames> expected(Names const& names) const {
    return expected_names(named_.config, names, request_.read.library, request_.read.map);
  }

  Names behind(std::string_view prefix) const {
    Names found;
    for (auto at = names_.lower_bound(prefix); at != names_.end() && at->starts_with(prefix); ++at)
      found.insert(at->substr(prefix.size()));
    return found;
  }

  /// Prefixes before some of the missing names.
  std::set<std::string> candidates(std::vector<std::string> const& lacking) const {
    std::set<std::string> found;
    std::size_t const step = std::max<std::size_t>(lacking.size() / most_probes, 1);
    for (std::size_t i = 0; i < lacking.size(); i += step)
      for (std::string const& name : names_)
        if (name.size() > lacking[i].size() && name.ends_with(lacking[i]) &&
            name[name.size() - lacking[i].size() - 1] == '.')
          found.insert(name.substr(0, name.size() - lacking[i].size()));
    return found;
  }

  /// The prefixes behind which all names are; else those behind which most are.
  std::vector<std::string> fitting(ExpectedNames const& bare) const {
    std::vector<std::string> complete;
    std::vector<std::string> most;
    for (std::string const& prefix : candidates(bare.lacking)) {
      auto const there = expected(behind(prefix));
      if (there && there->lacking.empty()) complete.push_back(prefix);
      if (there && !there->most_lack()) most.push_back(prefix);
    }
    return complete.empty() ? most : complete;
  }

  /// Whether more than single values, such as the step of a trainer, has no such prefix.
  bool loses(std::string const& prefix, bool keeps_names) const {
    StoredView const view = source_.format->view(source_, prefix);
    bool const has_state = !view.states.empty() || !view.fixed_state.empty();
    if (keeps_names && has_state && !request_.read.drop_optimizer) return true;
    if (request_.read.unmapped == Unmapped::drop) return false;
    Names const unread(view.unread.begin(), view.unread.end());
    return std::ranges::any_of(source_.stored.tensors, [&](StoredTensor const& tensor) {
      return !tensor.shape.empty() && unread.contains(tensor.name.text());
    });
  }

  static std::vector<std::string> quoted(std::vector<std::string> names) {
    for (std::string& name : names) name = fmt::format("'{}'", name);
    return names;
  }

  Checkpoint const& source_;
  PlanRequest const& request_;
  NamedConfig named_;
  Names names_;  ///< of weights, as they are stored
};

}  // namespace

std::optional<FoundPrefix> found_prefix(Checkpoint const& source, PlanRequest const& request,
                                        bool keeps_names, PrefixUse use) {
  bool const plain = source.storage == Storage::chunks && source.names == NameOwner::family;
  if (!plain || !request.read.prefix.empty() || request.read.map == "none") return std::nullopt;
  if (keeps_names && format_of(request.target.format).target().objects) return std::nullopt;
  return PrefixFinder(source, request).run(keeps_names, use);
}

}  // namespace reshard
