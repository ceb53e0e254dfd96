#include "pipeline/publication/claim/usable_leftovers.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include <sys/stat.h>

#include "core/base/threads/workers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The thing at the place of a file of the target. A link: it has other names, as one that became a
/// hard link to a previous target's.
enum class Found : std::uint8_t { other, link, file };

Found look_at(fs::path const& path, std::uint64_t bytes) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return Found::other;
  if (status.st_nlink > 1) return Found::link;
  return static_cast<std::uint64_t>(status.st_size) == bytes ? Found::file : Found::other;
}

/// Why an earlier run cannot be resumed.
std::optional<std::string> obstacle(TargetTask const& task, LeftoverTerms const& terms,
                                    JournalFolder const& journal, fs::path const& staging) {
  if (terms.fresh) return "--fresh was given";
  if (auto reason = journal.obstacle(staging, task.identity)) return reason;
  if (!terms.is_own(staging) || !terms.is_own(journal.path())) return "it belongs to another user";
  std::vector<TargetFile> const& files = task.plan.files;
  std::vector<Found> found(files.size());
  overlapped(files.size(), [&](std::size_t f) {
    found[f] = look_at(staging / files[f].path, files[f].size_bytes);
  });
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::string const name = files[f].path.filename().string();
    if (found[f] == Found::link)
      return fmt::format("{} is already a link to a file of the previous target", name);
    if (found[f] == Found::other) return fmt::format("{} is missing or has another size", name);
  }
  return std::nullopt;
}

}  // namespace

UsableLeftovers usable_leftovers(TargetTask const& task, Leftovers const& left,
                                 LeftoverTerms const& terms) {
  std::string why;
  for (fs::path const& folder : left.journals)
    for (fs::path const& staging : left.staging) {
      JournalFolder const journal(folder);
      auto const reason = obstacle(task, terms, journal, staging);
      if (reason && (why.empty() || journal.is_of(staging))) why = *reason;
      if (reason) continue;
      if (journal.is_complete(staging)) return {folder, staging, EarlierTarget::whole, ""};
      if (terms.journaled == Journaled::no) continue;
      return {folder, staging, EarlierTarget::part, ""};
    }
  if (terms.fresh) why = "--fresh was given";
  if (why.empty())
    why = terms.journaled == Journaled::yes ? "its journal is not a folder, or is missing"
                                            : "with this target.io a run always starts afresh";
  return {{}, {}, EarlierTarget::nothing, why};
}

}  // namespace reshard
