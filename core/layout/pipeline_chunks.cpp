#include "core/layout/pipeline_chunks.hpp"

#include <algorithm>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/layout/pipeline_layout.hpp"

namespace reshard {
namespace {

constexpr int most_layers = 1 << 24;
/// The largest size that is tried to replace one that does not fit.
constexpr int most_tried = 4096;

/// Why layers cannot be spread over chunks.
struct Misfit {
  std::string reason;
};

int quotient(int layers, int parts, std::string_view layers_are, std::string_view parts_are) {
  if (parts < 1 || layers < 0 || layers % parts != 0)
    throw Misfit{fmt::format("{} {} cannot be spread evenly over {} {}", layers, layers_are, parts,
                             parts_are)};
  return layers / parts;
}

bool is_set(int layers) { return layers >= 0; }

void check(PipelineSpec const& spec) {
  if (spec.ranks < 1 || spec.chunks_per_rank < 1)
    fail(ErrorKind::usage, "pipeline: pp = {} and vpp = {} must both be at least 1.", spec.ranks,
         spec.chunks_per_rank);
  if (Index{spec.ranks} * spec.chunks_per_rank > most_pipeline_stages)
    fail(ErrorKind::usage, "pipeline: pp {} x vpp {} is more than {} chunks. Choose smaller sizes.",
         spec.ranks, spec.chunks_per_rank, most_pipeline_stages);
  if (spec.decoder_layers < 0 || spec.mtp_layers < 0)
    fail(ErrorKind::usage, "pipeline: {} and {} prediction depths: neither may be below zero.",
         counted(spec.decoder_layers, "decoder layer"), spec.mtp_layers);
  if (spec.decoder_layers > most_layers || spec.mtp_layers > most_layers)
    fail(ErrorKind::usage, "pipeline: {} and {} prediction depths: more than {} are not supported.",
         counted(spec.decoder_layers, "decoder layer"), spec.mtp_layers, most_layers);
  bool const uneven = is_set(spec.first_stage_layers) || is_set(spec.last_stage_layers);
  bool const at_ends = spec.account_for_embedding || spec.account_for_loss;
  if ((uneven ? 1 : 0) + (at_ends ? 1 : 0) + (spec.layout.empty() ? 0 : 1) > 1)
    fail(ErrorKind::usage,
         "pipeline: set only one of: first/last stage layers ({}/{}), embedding or loss counted "
         "as layers ({}/{}), a layout ('{}'). Remove the others.",
         spec.first_stage_layers, spec.last_stage_layers, spec.account_for_embedding,
         spec.account_for_loss, spec.layout);
}

/// Decoder layers of the chunks of first, middle and last pipeline rank.
struct StageSizes {
  int first = 0;
  int middle = 0;
  int last = 0;
};

StageSizes uneven_sizes(PipelineSpec const& spec) {
  int const first = std::max(spec.first_stage_layers, 0);
  int const last = std::max(spec.last_stage_layers, 0);
  int const fixed_stages =
      (is_set(spec.first_stage_layers) ? 1 : 0) + (is_set(spec.last_stage_layers) ? 1 : 0);
  if (fixed_stages > spec.ranks)
    throw Misfit{
        fmt::format("pp = {} has one stage, which cannot hold both {} first and {} last layers",
                    spec.ranks, first, last)};
  Index const rest = Index{spec.decoder_layers} - first - last;
  int const middle_stages = spec.ranks - fixed_stages;
  if (rest < 0 || (middle_stages == 0 && rest != 0))
    throw Misfit{fmt::format(
        "the first stage takes {} and the last {}, which does not fit {} "
        "over pp = {}",
        first, counted(last, "layer"), counted(spec.decoder_layers, "decoder layer"), spec.ranks)};
  StageSizes sizes;
  if (middle_stages > 0)
    sizes.middle = quotient(narrow<int>(rest), middle_stages * spec.chunks_per_rank,
                            "decoder layers outside of the first and last stage", "chunks");
  sizes.first =
      is_set(spec.first_stage_layers)
          ? quotient(first, spec.chunks_per_rank, "layers of the first stage", "virtual stages")
          : sizes.middle;
  sizes.last =
      is_set(spec.last_stage_layers)
          ? quotient(last, spec.chunks_per_rank, "layers of the last stage", "virtual stages")
          : sizes.middle;
  return sizes;
}

/// Decoder layers of every chunk in model order.
std::vector<int> chunk_sizes(PipelineSpec const& spec) {
  auto const chunks =
      static_cast<std::size_t>(spec.ranks) * static_cast<std::size_t>(spec.chunks_per_rank);
  if (is_set(spec.first_stage_layers) || is_set(spec.last_stage_layers)) {
    StageSizes const sizes = uneven_sizes(spec);
    std::vector<int> result(chunks, sizes.middle);
    for (std::size_t s = 0; s < chunks; ++s) {
      std::size_t const rank = s % static_cast<std::size_t>(spec.ranks);
      if (rank == 0 && is_set(spec.first_stage_layers))
        result[s] = sizes.first;
      else if (rank + 1 == static_cast<std::size_t>(spec.ranks))
        result[s] = sizes.last;
    }
    return result;
  }
  int const embedding = spec.account_for_embedding ? 1 : 0;
  int const loss = spec.account_for_loss ? 1 : 0;
  std::string const layers = embedding + loss == 0
                                 ? "decoder layers"
                                 : "layers (decoder layers, with embedding and loss if they count "
                                   "as layers)";
  std::vector<int> result(chunks, quotient(spec.decoder_layers + embedding + loss,
                                           narrow<int>(chunks), layers, "chunks"));
  result.front() -= embedding;
  result.back() -= loss;
  return result;
}

/// The sizes for which layers can be spread, the rest of `spec` as it is: "1, 2, 4"; "" for none.
std::string fitting(PipelineSpec spec, int PipelineSpec::*size, int least) {
  std::vector<std::string> sizes;
  for (int n = least; n <= std::min(spec.decoder_layers + 2, most_tried); ++n) {
    spec.*size = n;
    if (Index{spec.ranks} * spec.chunks_per_rank > most_pipeline_stages) break;
    try {
      chunk_sizes(spec);
      sizes.push_back(std::to_string(n));
    } catch (Misfit const&) {
      continue;
    }
  }
  return listed(sizes, 16);
}

/// "Sizes of pp that fit: 1, 2, 4. "; with several chunks on a rank, which Megatron has only where
/// pp is above 1, those of vpp as well. "" where none fits.
std::string sizes_that_fit(PipelineSpec const& spec) {
  bool const several = spec.chunks_per_rank > 1;
  std::string const ranks = fitting(spec, &PipelineSpec::ranks, several ? 2 : 1);
  std::string const chunks = several ? fitting(spec, &PipelineSpec::chunks_per_rank, 1) : "";
  std::string text;
  if (!ranks.empty()) text = fmt::format("Sizes of pp that fit: {}. ", ranks);
  if (!ranks.empty() && several)
    text = fmt::format("Sizes of pp that fit with vpp = {}: {}. ", spec.chunks_per_rank, ranks);
  if (!chunks.empty())
    text += fmt::format("Sizes of vpp that fit with pp = {}: {}. ", spec.ranks, chunks);
  return text;
}

[[noreturn]] void refuse(PipelineSpec const& spec, Misfit const& misfit) {
  bool const uneven = is_set(spec.first_stage_layers) || is_set(spec.last_stage_layers);
  std::string const fit = sizes_that_fit(spec);
  fail(ErrorKind::usage, "pipeline: {}. {}Choose {}{}, or give a pipeline layout.", misfit.reason,
       fit, fit.empty() ? "" : "one of these, ",
       uneven ? "other layers of the first and last stage"
              : "how many layers the first and the last stage take");
}

std::vector<PipelineStage> even_stages(PipelineSpec const& spec) {
  std::vector<int> sizes;
  try {
    sizes = chunk_sizes(spec);
  } catch (Misfit const& misfit) {
    refuse(spec, misfit);
  }
  std::vector<PipelineStage> stages;
  for (int const layers : sizes) stages.push_back({layers, 0, false, false});
  stages.front().embedding = true;
  stages.back().head = true;
  stages.back().mtp_layers = spec.mtp_layers;
  return stages;
}

std::vector<PipelineStage> written_stages(PipelineSpec const& spec) {
  std::vector<PipelineStage> stages = parse_pipeline_layout(spec.layout);
  if (std::ssize(stages) != Index{spec.ranks} * spec.chunks_per_rank)
    fail(ErrorKind::usage,
         "pipeline layout '{}': it has {}, but pp {} x vpp {} is {}. Change the layout, pp or vpp.",
         spec.layout, counted(stages.size(), "stage"), spec.ranks, spec.chunks_per_rank,
         Index{spec.ranks} * spec.chunks_per_rank);
  int decoder = 0;
  int mtp = 0;
  for (PipelineStage const& stage : stages) {
    decoder += stage.decoder_layers;
    mtp += stage.mtp_layers;
  }
  if (decoder != spec.decoder_layers || mtp != spec.mtp_layers)
    fail(
        ErrorKind::usage,
        "pipeline layout '{}': it has {} t and {} m, but the model has {} and {} prediction depths. Change the layout.",
        spec.layout, decoder, mtp, counted(spec.decoder_layers, "decoder layer"), spec.mtp_layers);
  return stages;
}

std::vector<Run> next_run(Index& at, int count) {
  if (count == 0) return {};
  Run const run{at, at + count, false};
  at = run.end;
  return {run};
}

}  // namespace

std::vector<PipelineChunk> pipeline_chunks(PipelineSpec const& spec) {
  check(spec);
  std::vector<PipelineStage> const stages =
      spec.layout.empty() ? even_stages(spec) : written_stages(spec);
  std::vector<PipelineChunk> chunks;
  Index decoder = 0;
  Index mtp = 0;
  for (PipelineStage const& stage : stages) {
    int const s = narrow<int>(chunks.size());
    PipelineChunk chunk{s % spec.ranks, s / spec.ranks, {}, {}, stage.embedding, stage.head};
    chunk.decoder = next_run(decoder, stage.decoder_layers);
    chunk.mtp = next_run(mtp, stage.mtp_layers);
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

}  // namespace reshard
