// Planning at the size of DeepSeek-V3: 61 layers of which 58 have 256 experts, hidden 7168,
// moe_inter 2048, changed from tp 8 · pp 16 · ep 64 · etp 8 to tp 4 · pp 8 · ep 32 · etp 4. Counts
// regions (overlaps of source and target pieces) as performance documents of the field do.

#include <benchmark/benchmark.h>

#include "core/mapping/sides/side.hpp"
#include "core/plan/plan.hpp"
#include "tests/support/sample_models.hpp"

namespace {

using namespace reshard;

Json args() {
  std::string freq = "[0, 0, 0";
  for (int layer = 3; layer < 61; ++layer) freq += ", 1";
  return parse_json(
      R"({"num_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "multi_latent_attention": true, "q_lora_rank": 1536,
          "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128,
          "ffn_hidden_size": 18432, "num_experts": 256, "moe_ffn_hidden_size": 2048, "moe_shared_expert_intermediate_size": 2048,
          "vocab_size": 129280, "make_vocab_size_divisible_by": 1280, "swiglu": true, "untie_embeddings_and_output_weights": true,
          "normalization": "RMSNorm", "moe_layer_freq": )" +
          freq + "]}",
      "args");
}

struct Layout {
  test::MeshSizes mesh;
  int last_stage_layers = -1;
};

/// A catalogue of every file of the layout, as the read or the target stage makes it.
Catalog catalog_of(Model const& model, Side const& side, Layout const& at) {
  PipelineSpec spec;
  spec.ranks = at.mesh.pp;
  spec.decoder_layers = 61;
  spec.last_stage_layers = at.last_stage_layers;
  Catalog catalog;
  catalog.tensors.resize(model.tensors().size());
  auto const places = at.mesh.places();
  for (PipelineChunk const& chunk : pipeline_chunks(spec)) {
    auto const names = side.names(&chunk);
    for (MeshPlace const& mesh_place : places) {
      SidePlace const place{mesh_place, &chunk};
      auto const file = static_cast<std::uint32_t>(catalog.files.size());
      catalog.files.emplace_back();
      std::uint64_t offset = 0;
      for (StoredName const& name : names) {
        auto const blob = static_cast<std::uint32_t>(catalog.blobs.size());
        catalog.blobs.add({file, offset, DType::bf16, {}});
        for (Piece const& piece : side.pieces(name, place))
          catalog.tensors[index(piece.tensor)].add(piece, blob, name.copy);
        Index volume = 2;
        for (Index const extent : side.layout(name.entry, place).file_shape) volume *= extent;
        offset += static_cast<std::uint64_t>(volume) + 128;
      }
    }
  }
  return catalog;
}

struct World {
  MapFile core = test::map_file("mcore");
  Model model{core, core, {args(), "args", 0}};
  Catalog source;
  Catalog target;
  World(Layout const& from, Layout const& to) {
    apply_present(model, core);
    for (TensorId const tensor :
         Side(model, core, {true, from.mesh, {}, {}, {}, "bench"}).optional_tensors())
      if (!model.tensor(tensor).name.starts_with("shared")) model.set_exists(tensor, false);
    source =
        catalog_of(model,
                   Side(model, core,
                        {true, from.mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "source"}),
                   from);
    target = catalog_of(
        model,
        Side(model, core, {true, to.mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "target"}),
        to);
  }
};

void plan(benchmark::State& state, Layout const& from, Layout const& to) {
  World const world(from, to);
  std::uint64_t regions = 0;
  for (auto _ : state) {
    Plan const made = make_plan(world.model, world.source, world.target, {16U << 20, 128U << 20});
    regions = made.joined_regions;
    benchmark::DoNotOptimize(made.cells.data());
  }
  state.counters["regions"] = static_cast<double>(regions);
  state.counters["source_pieces"] = [&] {
    double pieces = 0;
    for (auto const& tensor : world.source.tensors) pieces += static_cast<double>(tensor.size());
    return pieces;
  }();
}

void catalogue(benchmark::State& state, Layout const& at) {
  MapFile const core = test::map_file("mcore");
  Model const model{core, core, {args(), "args", 0}};
  Side const side(model, core,
                  {true, at.mesh, {{"form", "grouped"}, {"spec", "te"}}, {}, {}, "bench"});
  for (auto _ : state) benchmark::DoNotOptimize(catalog_of(model, side, at).blobs.data());
}

Layout const source_etp{{8, 16, 1, 64, 8}, 1};
Layout const target_etp{{4, 8, 1, 32, 4}, 5};
Layout const source_ep{{8, 16, 1, 64, 1}, 1};
Layout const target_ep{{4, 8, 1, 32, 1}, 5};

BENCHMARK_CAPTURE(plan, etp8_to_etp4, source_etp, target_etp)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, etp1_to_etp1, source_ep, target_ep)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(catalogue, names_and_pieces_of_8192_files, source_etp)
    ->Unit(benchmark::kMillisecond);

}  // namespace
