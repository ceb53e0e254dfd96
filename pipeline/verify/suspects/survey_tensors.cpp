#include "pipeline/verify/suspects/survey_tensors.hpp"

#include "core/io/file_set.hpp"
#include "core/plan/cells/part_plan.hpp"
#include "core/plan/cells/round_sizes.hpp"
#include "pipeline/verify/own_cells.hpp"

namespace reshard {
namespace {

/// Takes the place of the writer.
class SurveySink : public ExtentSink {
 public:
  explicit SurveySink(ValueSurvey& survey) : survey_(survey) {}
  void write(std::span<Extent const> extents, std::byte* staging) override {
    std::vector<ValueSurvey::Stretch> stretches;
    for (Extent const& extent : extents) {
      stretches.push_back({extent.file, extent.offset_bytes, {staging + extent.at, extent.bytes}});
      stats_.bytes += extent.bytes;
    }
    ++stats_.calls;
    survey_.take(stretches);
  }
  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return "survey"; }

 private:
  ValueSurvey& survey_;
  WriteStats stats_;
};

}  // namespace

std::vector<SliceValues> survey_tensors(SurveyWork const& work, std::uint64_t memory_bytes,
                                        std::size_t threads, Comm const& comm) {
  ValueSurvey survey(work.tensors, threads);
  FileSet files(work.checkpoint.files, FileSet::Access::read);
  together(comm, [&] {
    PlanLimits limits = limits_for(memory_bytes);
    limits.digests = false;
    limits.threads = threads;
    Catalog const& source = work.catalogue.source;
    Model const& model = *work.catalogue.model;
    Plan const plan = work.parts ? make_part_plan(model, source, work.target, limits)
                                 : make_plan(model, source, work.target, limits);
    SurveySink sink(survey);
    stream_own_cells({plan, source.views, memory_bytes, threads}, files, sink, comm);
  });
  return survey.merged(comm);
}

}  // namespace reshard
