#include "pipeline/publication/claim/staged_target.hpp"

#include <utility>

#include "core/base/files/file.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {

namespace fs = std::filesystem;

StagedTarget::StagedTarget(fs::path target, std::string const& token,
                           std::unique_ptr<Publication> publication, Journaled journaled)
    : target_(std::move(target)),
      folder_(staging_of(target_, token)),
      journal_(journal_of(target_, token)),
      publication_(std::move(publication)),
      journaled_(journaled) {}

void StagedTarget::keep(bool kept) {
  distrust_lost_writes();
  if (publication_) publication_->keep(sealed_ || (kept && is_journaled()));
}

void StagedTarget::seal() {
  sealed_ = true;
  keep(true);
}

void StagedTarget::distrust_lost_writes() const {
  if (is_journaled() && write_back_has_failed()) journal_.distrust();
}

Error StagedTarget::explained(Error const& error) const {
  std::error_code unknown;
  if (sealed_) return error;  // publish() looks itself, and says so
  if (fs::symlink_status(folder_, unknown).type() != fs::file_type::not_found) return error;
  return {ErrorKind::target,
          fmt::format(
              "{}: no longer exists: another job has taken it over, or it was removed. Nothing was "
              "published: find out what else writes {}, then run again.",
              folder_.string(), target_.string())};
}

std::string StagedTarget::publish(Comm const& comm) {
  std::string left_behind;
  together(comm, [&] {
    if (!publication_) return;
    publication_->publish(names_);
    left_behind = publication_->left_behind();
  });
  return left_behind;
}

}  // namespace reshard
