#include "pipeline/verify/compare/compare.hpp"

#include "core/base/tables/counted.hpp"
#include "core/base/threads/activity.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "core/transport/rank_threads.hpp"
#include "pipeline/verify/compare/compare_match.hpp"
#include "pipeline/verify/compare/compare_report.hpp"
#include "pipeline/verify/compare/compare_sides.hpp"
#include "pipeline/verify/own_cells.hpp"
#include "stages/read/extent_reader.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

/// Takes the place of the writer: what would be written is compared with what is there.
class CompareSink : public ExtentSink {
 public:
  explicit CompareSink(ExtentComparer& comparer) : comparer_(comparer) {}
  void write(std::span<Extent const> extents, std::byte* staging) override {
    comparer_.compare(extents, staging);
    stats_ = {comparer_.bytes(), comparer_.calls()};
  }
  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return "compare"; }

 private:
  ExtentComparer& comparer_;
  WriteStats stats_;
};

class Comparer {
 public:
  Comparer(CompareRequest const& request, Comm const& comm) : request_(request), comm_(comm) {}

  CompareReport run() {
    together(comm_, [&] {
      check_checkpoint_folder(request_.a);
      check_checkpoint_folder(request_.b);
    });
    sides_ = open_sides(request_, comm_);
    PlanLimits limits = limits_for(request_.memory_bytes);
    limits.digests = false;
    together(comm_, [&] {
      matched_ = match_sides(sides_, request_.comparison,
                             request_.weights_only           ? ComparedPart::weights
                             : !sides_.without_state.empty() ? ComparedPart::without_state
                                                             : ComparedPart::all);
      for (std::string const& cast : matched_.casts)
        sides_.notes.push_back(cast + ", as a map states: compared by value");
      if (request_.weights_only)
        sides_.notes.push_back(
            fmt::format("weights only: {} of optimizer state and quantisers in a and {} in "
                        "b are left out",
                        counted(matched_.left_out_a, "tensor"), matched_.left_out_b));
      else if (std::uint64_t const left_out = matched_.left_out_a + matched_.left_out_b;
               left_out > 0)
        sides_.notes.push_back(fmt::format(
            "{} was made with source.optimizer = \"drop\" (by its {}): {} of optimizer state {} "
            "left out",
            sides_.without_state.string(), manifest_name, counted(left_out, "tensor"),
            agreeing(left_out, "is", "are")));
      plan_ = make_plan(*sides_.a.catalogue.model, sides_.a.catalogue.source, matched_.b, limits);
    });
    compare();
    return report();
  }

 private:
  void compare() {
    begin_phase("comparing");
    FileSet a_files(sides_.a.checkpoint.files, FileSet::Access::read);
    FileSet b_files(sides_.b.checkpoint.files, FileSet::Access::read);
    // Values that are computed while they are read take longer than reading.
    std::size_t const threads = rank_threads(comm_);
    auto const threads_for = [threads](Catalog const& catalog) {
      return catalog.views.empty() ? 1 : threads;
    };
    Catalog const& a = sides_.a.catalogue.source;
    ExtentReader reader(b_files, matched_.b.views, {}, threads_for(matched_.b));
    together(comm_, [&] {
      StoredPlaces const places(*sides_.a.catalogue.model, matched_.b);
      ExtentComparer comparer(matched_.b, places, request_.comparison,
                              [&reader](std::span<Extent const> extents, std::byte* memory) {
                                reader.read(extents, memory);
                              });
      CompareSink sink(comparer);
      stream_own_cells({plan_, a.views, request_.memory_bytes, threads_for(a)}, a_files, sink,
                       comm_);
      stats_ = std::move(comparer.stats());
    });
    merge_stats(comm_, stats_);
  }

  CompareReport report() const {
    CompareFindings const findings{&request_, &sides_, &matched_, stats_};
    CompareReport result;
    result.same = is_same(findings);
    if (comm_.rank() != 0) return result;
    result.json = compare_json(findings);
    result.text = compare_text(findings);
    return result;
  }

  CompareRequest const& request_;
  Comm const& comm_;
  ComparedSides sides_;
  MatchedSides matched_;
  Plan plan_;
  std::vector<TensorStats> stats_;
};

}  // namespace

CompareReport compare_checkpoints(CompareRequest const& request, Comm const& comm) {
  return Comparer(request, comm).run();
}

}  // namespace reshard
