#pragma once

#include <filesystem>

#include "core/formats/format.hpp"
#include "core/formats/wrapped/wrapped_model.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// The exchange of headers between the ranks of a job.
class RankReaders final : public HeaderExchange {
 public:
  /// `comm` outlives this.
  explicit RankReaders(Comm const& comm) : comm_(comm) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void together(std::function<void()> const& work) const override;
  void together_seeing(std::function<void()> const& work) const override;
  std::vector<std::string> all_gather(std::string const& bytes) const override;

 private:
  Comm const& comm_;
};

/// Reads every header of a checkpoint: each rank its share of the files, exchanged in one
/// collective; every rank returns the same. Collective. Errors as of open_checkpoint().
Checkpoint open_source(std::filesystem::path const& path, FormatId wanted, OpenChoice const& choice,
                       Comm const& comm);
/// Opens an adapter that is to be merged into an opened source: its files become files of the
/// source (JoinedCheckpoints::adapter). Collective.
void add_adapter(Checkpoint& source, std::filesystem::path const& adapter, Comm const& comm);
/// Takes what a job wants of an adapter: take_wrapped(), and add_adapter() where a source without
/// an adapter of its own gets one merged. Collective. An Error of kind usage where there is none.
void settle_adapter(Checkpoint& source, WrappedChoice const& choice, Comm const& comm);
/// Opens a checkpoint that the source is to be averaged with: its files become files of the source
/// (JoinedCheckpoints::averaged). Collective.
void add_averaged(Checkpoint& source, std::filesystem::path const& path, FormatId wanted,
                  OpenChoice const& choice, Comm const& comm);
/// Opens a safetensors file with rows of tokens that the target adds to the source's weights: it
/// becomes a file of the source (Checkpoint::new_rows). Collective. An Error of kind source where
/// it is none.
void add_new_rows(Checkpoint& source, std::filesystem::path const& file, Comm const& comm);
/// Opens the source that is found there.
Checkpoint open_source(std::filesystem::path const& path, Comm const& comm);

}  // namespace reshard
