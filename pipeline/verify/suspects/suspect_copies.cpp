#include "pipeline/verify/suspects/suspect_copies.hpp"

#include <algorithm>
#include <set>

#include "core/base/tables/integers.hpp"
#include "core/base/text/wire.hpp"
#include "core/io/file_set.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "pipeline/verify/look_at_masters.hpp"
#include "pipeline/verify/suspects/suspect_tensors.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/verify/paired_elements.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {
namespace {

class CopySearch {
 public:
  CopySearch(Checkpoint const& checkpoint, JobPlan const& catalogue, Comm const& comm)
      : checkpoint_(checkpoint),
        model_(*catalogue.model),
        catalog_(catalogue.source),
        comm_(comm) {}

  CopyFindings run(std::size_t threads) {
    together(comm_, [&] { choose_work(); });
    if (work_.regions.empty()) return std::move(findings_);
    ScanOptions options;
    options.threads = threads;
    ScanResult const found =
        scan(comm_, std::vector<std::filesystem::path>(checkpoint_.files), work_, options);
    std::vector<Suspect> mine;
    together(comm_, [&] { mine = look_at_share(found.shares); });
    findings_.suspects = gathered(mine);
    return std::move(findings_);
  }

 private:
  /// Of all shares, those that are there several times, and those of masters and their weights.
  void choose_work() {
    work_ = digest_work(model_, catalog_, DigestScope::all);
    checks_ =
        state_checks(model_, catalog_, DigestId{narrow<std::uint32_t>(work_.tensor_bytes.size())});
    std::erase_if(
        checks_, [](StateCheck const& check) { return check.rule != StateRule::rounds_to_weight; });
    findings_.masters = checks_.size();
    std::set<DigestId> compared;
    for (StateCheck const& check : checks_)
      compared.insert({check.rounded, digest_of(check.weight)});
    add_state_shares(work_, checks_);
    std::vector<bool> wanted(work_.shares.size(), false);
    for (std::size_t s = 0; s < work_.shares.size(); ++s) {
      PieceShare const& share = work_.shares[s];
      if (share.same_as != ShareId(s)) {
        wanted[s] = wanted[index(share.same_as)] = true;
        ++findings_.replicas;
      } else if (compared.contains(share.digest)) {
        wanted[s] = true;
      }
    }
    std::erase_if(work_.regions,
                  [&](ShareRegion const& region) { return !wanted[index(region.to)]; });
  }

  /// Ranks take what differs in turn.
  std::vector<Suspect> look_at_share(std::span<std::uint64_t const> shares) const {
    std::vector<Suspect> mine;
    std::size_t number = 0;
    auto const is_mine = [&] {
      return number++ % static_cast<std::size_t>(comm_.size()) ==
             static_cast<std::size_t>(comm_.rank());
    };
    for (ShareId const differing : differing_replicas(work_, shares))
      if (is_mine()) mine.push_back(differing_copy(work_.share(differing)));
    std::vector<std::uint64_t> const digests = tensor_digests(work_, shares);
    for (StateCheck const& check : checks_)
      if (digests[index(check.rounded)] != digests[index(digest_of(check.weight))] && is_mine())
        mine.push_back(wrong_master(check));
    return mine;
  }

  Suspect differing_copy(PieceShare const& copy) const {
    PieceShare const& taken = work_.share(copy.same_as);
    auto const tensor = TensorId(index(copy.digest));
    FileSet files(checkpoint_.files, FileSet::Access::read);
    ExtentReader reader(files, catalog_.views);
    CopyDifference const found =
        compare_copy(model_, catalog_, tensor, taken.piece, copy.piece,
                     [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
                       Extent const extent{file, offset, into.size(), 0};
                       reader.read({&extent, 1}, into.data());
                     });
    bool const tied = catalog_.tensors[index(tensor)].is_copy(copy.piece);
    auto const where = [&](PieceShare const& share) {
      Blob const& blob = catalog_.blobs[share.blob];
      return fmt::format("'{}' in {}", blob.name, catalog_.files[blob.file]);
    };
    return {tied ? SuspectKind::tied : SuspectKind::replica, part_name(model_, tensor, found.first),
            fmt::format("{} of {} elements differ between {} and {}, first at {} ({})",
                        found.differing, found.elements, where(taken), where(copy),
                        place_text(model_, tensor, found.first), found.values),
            found.differing};
  }

  Suspect wrong_master(StateCheck const& check) const {
    MasterFindings const found = look_at_masters(checkpoint_, model_, catalog_, check);
    return {SuspectKind::master, part_name(model_, check.weight, found.place),
            fmt::format("{} of {} master weights do not round to it, first at {}", found.differing,
                        found.elements, found.first),
            found.differing};
  }

  std::vector<Suspect> gathered(std::vector<Suspect> const& mine) const {
    std::vector<Suspect> all;
    for (std::string const& packed : comm_.all_gather(WireWriter().put(mine).bytes()))
      for (Suspect& one : WireReader(packed, "the suspects of a rank").all<std::vector<Suspect>>())
        all.push_back(std::move(one));
    std::ranges::sort(all, {},
                      [](Suspect const& one) { return std::tie(one.kind, one.tensor, one.found); });
    return all;
  }

  Checkpoint const& checkpoint_;
  Model const& model_;
  Catalog const& catalog_;
  Comm const& comm_;
  DigestWork work_;
  std::vector<StateCheck> checks_;
  CopyFindings findings_;
};

}  // namespace

CopyFindings compare_copies_inside(Checkpoint const& checkpoint, JobPlan const& catalogue,
                                   std::size_t threads, Comm const& comm) {
  return CopySearch(checkpoint, catalogue, comm).run(threads);
}

}  // namespace reshard
