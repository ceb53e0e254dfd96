#include "stages/read/open_source.hpp"

#include "core/transport/shared_sight.hpp"

namespace reshard {

void RankReaders::together(std::function<void()> const& work) const {
  reshard::together(comm_, work);
}

void RankReaders::together_seeing(std::function<void()> const& work) const {
  reshard::together_seeing(comm_, work);
}

std::vector<std::string> RankReaders::all_gather(std::string const& bytes) const {
  return comm_.all_gather(bytes);
}

Checkpoint open_source(std::filesystem::path const& path, FormatId wanted, OpenChoice const& choice,
                       Comm const& comm) {
  return open_checkpoint(path, wanted, choice, RankReaders(comm));
}

Checkpoint open_source(std::filesystem::path const& path, Comm const& comm) {
  return open_source(path, FormatId::automatic, {}, comm);
}

}  // namespace reshard
