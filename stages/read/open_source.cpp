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

void add_adapter(Checkpoint& source, std::filesystem::path const& adapter, Comm const& comm) {
  auto opened = std::make_shared<Checkpoint>(open_source(adapter, comm));
  source.files.insert(source.files.end(), opened->files.begin(), opened->files.end());
  source.stamps.insert(source.stamps.end(), opened->stamps.begin(), opened->stamps.end());
  source.stamped_by.insert(source.stamped_by.end(), opened->stamped_by.begin(),
                           opened->stamped_by.end());
  source.adapter = std::move(opened);
}

Checkpoint open_source(std::filesystem::path const& path, Comm const& comm) {
  return open_source(path, FormatId::automatic, {}, comm);
}

}  // namespace reshard
