#include "stages/read/open_source.hpp"

#include "core/transport/shared_sight.hpp"

namespace reshard {
namespace {

/// Appends the files of another checkpoint with what is known of each.
void add_files(Checkpoint const& other, Checkpoint& source) {
  source.files.insert(source.files.end(), other.files.begin(), other.files.end());
  source.stamps.insert(source.stamps.end(), other.stamps.begin(), other.stamps.end());
  source.stamped_by.insert(source.stamped_by.end(), other.stamped_by.begin(),
                           other.stamped_by.end());
}

}  // namespace

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
  source.adapter = std::make_shared<Checkpoint const>(open_source(adapter, comm));
  add_files(*source.adapter, source);
}

void settle_adapter(Checkpoint& source, WrappedChoice const& choice, Comm const& comm) {
  together_seeing(comm, [&] {
    bool const taken = take_wrapped(source, choice);
    if (!taken && choice.use != AdapterUse::keep && choice.config.empty())
      fail(ErrorKind::usage,
           "[model] adapter: {} holds no model that peft has wrapped an adapter around. {}.",
           source.place,
           choice.use == AdapterUse::merge ? "Name the adapter's folder with source.adapter"
                                           : "Remove the key");
  });
  if (choice.use == AdapterUse::merge && !source.adapter) add_adapter(source, choice.config, comm);
}

void add_averaged(Checkpoint& source, std::filesystem::path const& path, FormatId wanted,
                  OpenChoice const& choice, Comm const& comm) {
  source.averaged.push_back(
      std::make_shared<Checkpoint const>(open_source(path, wanted, choice, comm)));
  add_files(*source.averaged.back(), source);
}

Checkpoint open_source(std::filesystem::path const& path, Comm const& comm) {
  return open_source(path, FormatId::automatic, {}, comm);
}

}  // namespace reshard
