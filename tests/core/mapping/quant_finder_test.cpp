// Finding quantised weights among stored tensors, and what the model is then.
#include "tests/core/mapping/quant_job.hpp"
#include "tests/support/mesh_sizes.hpp"

namespace reshard::test {
namespace {

TEST(QuantFinder, LayersMayBeStoredInDifferentWays) {
  Job job(family);
  Table table = plain(job);
  add_tiles(table, "l.1.gate", {32, 64});
  add_packed(table, "l.2.gate", 32, 64);
  add_tiles(table, "l.0.down", {64, 32});
  add_tiles(table, "head", {32, 64});
  table.erase("head.weight_scale_inv");
  table["head.weight"] = {DType::f8_e4m3, {8, 64}};
  table["head.weight_scale"] = {DType::f32, {}};
  find_and_apply(job, table);
  EXPECT_EQ(stored_names(job), keys_of(table));
  expect_tiled(job);
  EXPECT_TRUE(job.exists("ffn.gate"));
  EXPECT_TRUE(job.model.quantised(job.tensor("ffn.gate")));
  EXPECT_FALSE(job.model.quantised(job.tensor("ffn.up")));
  EXPECT_FALSE(job.exists("head"));
  EXPECT_TRUE(job.model.quantised(job.tensor("head")));
  EXPECT_EQ(shown(job, "ffn.gate.tiles.scale"), "layer inter/16 hidden/16");
  EXPECT_EQ(shown(job, "ffn.gate.packed.values"), "layer inter hidden/2");
  EXPECT_EQ(shown(job, "ffn.gate.packed.shape"), "layer numbers2");
  EXPECT_EQ(shown(job, "head.whole.scale"), "");
  EXPECT_FALSE(job.model.find_tensor("ffn.gate.tiles.input_scale"));
  EXPECT_EQ(job.model.volume(job.model.tensor(job.tensor("ffn.gate"))), 32 * 64);
}

TEST(QuantFinder, AnOptionalPartMayBeInSomeLayersOnly) {
  Job job(family);
  Table table = plain(job);
  for (char const* weight : {"l.0.up", "l.1.up", "l.2.up"}) add_tiles(table, weight, {32, 64});
  table["l.1.up.input_scale"] = {DType::f32, {}};
  find_and_apply(job, table);
  EXPECT_EQ(stored_names(job), keys_of(table));
  expect_tiled(job);
  EXPECT_FALSE(job.exists("ffn.up"));
}

TEST(QuantFinder, NothingQuantisedIsNothingFound) {
  Job const job(family);
  Table const table = plain(job);
  QuantFinder finder(job.model, *job.side);
  finder.look({}, job.names(), find_in(table), "folder");
  EXPECT_FALSE(finder.found());
}

TEST(QuantFinder, ExpertsOfOneLayerMustBeAlike) {
  Job job(family);
  Table table = plain(job);
  for (int expert = 0; expert < 3; ++expert)
    add_tiles(table, fmt::format("l.1.e.{}.up", expert), {32, 64});
  QuantFinder finder(job.model, *job.side);
  EXPECT_EQ(
      refusal([&] { finder.look({}, job.names(), find_in(table), "folder"); }, ErrorKind::source),
      "folder: 'l.1.e.3.up.weight' is not quantised, and 'l.1.e.0.up.weight' of the same weight is quantised (tiles). Parts of one layer's weight "
      "must be stored alike.");
  add_tiles(table, "l.1.e.3.up", {32, 64});
  find_and_apply(job, table);
  EXPECT_EQ(stored_names(job), keys_of(table));
  EXPECT_EQ(shown(job, "experts.up.tiles.scale"), "layer expert inter/16 hidden/16");
  expect_tiled(job);
}

TEST(QuantFinder, APlainLayerUnderAnotherNameIsSeen) {
  Job job(family);
  Table table = plain(job);
  table.erase("l.0.gate.weight");
  table["l.0.w1.weight"] = {DType::bf16, {32, 64}};
  add_tiles(table, "l.1.gate", {32, 64});
  find_and_apply(job, table);
  EXPECT_TRUE(job.model.in_set(job.model.tensor(job.tensor("ffn.gate")).axes.front().set, 0));
  Lines const names = stored_names(job);
  EXPECT_TRUE(std::ranges::find(names, "l.0.gate.weight") != names.end());
}

TEST(QuantFinder, AxesInFrontAreInFrontOfEveryPart) {
  Job job(stacked, {false, {}, {}, {}, {}, "", true});
  Table table = plain(job);
  EXPECT_EQ(table.at("d.fc1.weight").shape, (std::vector<Index>{3, 64, 64}));
  EXPECT_EQ(table.at("d.experts.weight").shape, (std::vector<Index>{3, 4, 32, 64}));
  table["d.fc1.weight"].dtype = DType::f8_e4m3;
  table["d.fc1.weight_scale_inv"] = {DType::f32, {3, 4, 4}};
  table["d.experts.weight"] = {DType::u8, {3, 4, 32, 32}};
  table["d.experts.weight_scale"] = {DType::f8_e4m3, {3, 4, 32, 4}};
  table["d.experts.weight_shape"] = {DType::i64, {3, 4, 2}};
  find_and_apply(job, table);
  EXPECT_EQ(stored_names(job), keys_of(table));
  expect_tiled(job);
  EXPECT_EQ(shown(job, "experts.up.packed.shape"), "layer expert numbers2");
  for (StoredName const& name : job.names())
    EXPECT_EQ(job.side->shape(name), table.at(name.name).shape) << name.name;
}

TEST(QuantFinder, PartsBesideAWeightLeaveItAsItIs) {
  Job job(family);
  Table table = plain(job);
  table["l.0.gate.weight_quantizer.most"] = {DType::f32, {}};
  table["l.1.gate.weight_quantizer.most"] = {DType::f32, {32, 1}};
  table["l.2.gate.input_quantizer.scale"] = {DType::f32, {64}};
  find_and_apply(job, table);
  EXPECT_EQ(stored_names(job), keys_of(table));
  EXPECT_TRUE(job.exists("ffn.gate"));
  EXPECT_FALSE(job.model.quantised(job.tensor("ffn.gate")));
  EXPECT_EQ(shown(job, "ffn.gate.beside.most"), "layer");
  EXPECT_EQ(shown(job, "ffn.gate.beside.most_row"), "layer inter");
  EXPECT_EQ(shown(job, "ffn.gate.beside.input"), "layer hidden");
}

/// One block for a matrix has the shape of one number for it, where matrices are fused.
TEST(QuantFinder, AFactTellsSchemesOfOneShapeApart) {
  constexpr char const* alike = R"(
[quant.one]
values = { name = "weight", dtype = ["F8_E4M3"], blocks = [1, 1] }
scale = { name = "scale", dtype = ["F32"], blocks = ["all", "one"] }
[quant.blocks]
first = "kind == 'block'"
values = { name = "weight", dtype = ["F8_E4M3"], blocks = [1, 1] }
scale = { name = "scale", dtype = ["F32"], blocks = [32, 64] }
)";
  MapFile const map = parse_map_file(std::string(definitions) + alike + fused, "m.toml");
  for (auto const& [kind, scheme] : {std::pair("block", "blocks"), std::pair("tensor", "one")}) {
    Model model(map, map, {Json::object().set("kind", kind), "facts", 0});
    model.set_schemes(evaluate_schemes(map, model));
    Side const side(model, map, {false, {}, {}, {}, {}, "", true});
    Table const table = {{"d.0.fc1.weight", {DType::f8_e4m3, {64, 64}}},
                         {"d.0.fc1.scale", {DType::f32, {2, 1}}}};
    QuantFinder finder(model, side);
    finder.look({}, side.names(nullptr), find_in(table), "folder");
    finder.apply(model);
    EXPECT_TRUE(model.find_tensor(fmt::format("ffn.gate.{}.scale", scheme))) << kind;
  }
}

/// Gate and up as tensors of their own, as some releases save what is fused.
constexpr char const* halves = R"(
[options]
halves = 1
[stored]
"embed.weight" = "embed: vocab hidden"
"head.weight" = "head: vocab hidden"
"d.{layer}.fc1.weight" = { is = "ffn: (gate: inter | up: inter) hidden", apart = { when = "halves", as = ["_w", "_v"] } }
"d.{layer}.fc2.weight" = "down: hidden inter"
"d.{layer}.norm.weight" = "norm: hidden"
"d.{layer}.experts.{expert}.weight" = "experts.up: inter hidden"
)";

SideOptions in_front(int tp) {
  SideOptions options;
  options.in_front = true;
  options.mesh = MeshSizes{tp, 1, 1, 1, 1};
  return options;
}

TEST(QuantFinder, PartsOfWhatIsFusedStandBesideItsName) {
  Job job(halves, in_front(2));
  Table table = plain(job);
  EXPECT_TRUE(table.contains("d.0.fc1.weight_w"));
  table["d.0.fc1.weight_quantizer.most"] = {DType::f32, {1}};
  table["d.1.fc1.weight_quantizer.most"] = {DType::f32, {64, 1}};
  table["d.2.fc1.input_quantizer.scale"] = {DType::f32, {64}};
  find_and_apply(job, table);
  EXPECT_EQ(stored_names(job), keys_of(table));
  for (StoredName const& name : job.names()) {
    EXPECT_EQ(job.side->shape(name), table.at(name.name).shape) << name.name;
    std::vector<Piece> const pieces = job.side->pieces(name, {});
    if (name.name == "d.0.fc1.weight_quantizer.most") {  // one number, read for both
      ASSERT_EQ(pieces.size(), 2U);
      EXPECT_NE(pieces[0].tensor, pieces[1].tensor);
      EXPECT_EQ(pieces[0].offset, pieces[1].offset);
    }
    if (name.name != "d.1.fc1.weight_quantizer.most") continue;
    ASSERT_EQ(pieces.size(), 2U);  // rank by rank: 16 rows of gate, 16 of up, and so on
    EXPECT_EQ(pieces[0].offset, 0);
    EXPECT_EQ(pieces[1].offset, 16);
  }
}

TEST(QuantFinder, RowsOfPartsThatRanksCannotShareAreAFault) {
  Job const job(halves, in_front(3));  // of 32 rows
  std::string faults;
  for (StoredName const& name : job.names())
    for (QuantScheme const& scheme : job.model.schemes())
      for (QuantPart const& part : scheme.parts)
        if (name.name.starts_with("d.1.fc1")) faults += job.side->part_fault(name, part, {}) + "\n";
  EXPECT_NE(faults.find("with tp = 3, the rows of a part are in an order that parts of axis "
                        "'inter' (size 32) cannot describe"),
            std::string::npos)
      << faults;
}

/// One stage of all layers, as one rank of a mesh has it.
PipelineChunk const whole_chunk{0, 0, {{0, 3, false}}, {}, true, true};

SideOptions local(int tp, int ep) {
  SideOptions options;
  options.local = true;
  options.mesh = MeshSizes{tp, 1, 1, ep, 1};
  options.place = "job, ";
  return options;
}

/// Its place, in the order of MeshSizes.
SidePlace rank_at(Index tp, Index ep) { return {{tp, 0, 0, ep, 0}, &whole_chunk}; }

TEST(QuantFinder, RanksOfAMeshHoldSharesOfEveryPart) {
  Job job(fused, local(2, 2));
  Table table;
  for (StoredName const& name : job.names(&whole_chunk))
    table[name.name] = {DType::bf16, job.side->layout(name.entry, {{}, &whole_chunk}).file_shape};
  EXPECT_EQ(table.at("d.1.fc1.weight").shape, (std::vector<Index>{32, 64}));
  for (int layer = 0; layer < 3; ++layer)
    add_tiles(table, fmt::format("d.{}.fc1", layer), {32, 64});
  for (std::string const layer : {"d.0.", "d.2."})
    for (std::string const expert : {"0", "1"}) {
      table[layer + "up.weight" + expert] = {DType::u8, {16, 32}};
      table[layer + "up.weight_scale" + expert] = {DType::f8_e4m3, {16, 4}};
      table[layer + "up.weight_shape" + expert] = {DType::i64, {2}};
    }
  QuantFinder finder(job.model, *job.side);
  for (int tp = 0; tp < 2; ++tp)
    for (int ep = 0; ep < 2; ++ep)
      finder.look(rank_at(tp, ep), job.names(&whole_chunk), find_in(table), "rank");
  finder.apply(job.model);
  job.make_side();
  Lines names;
  for (StoredName const& name : job.names(&whole_chunk)) {
    names.push_back(name.name);
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(job.side->layout(name.entry, rank_at(rank, rank)).file_shape,
                table.at(name.name).shape)
          << name.name;
  }
  std::ranges::sort(names);
  EXPECT_EQ(names, keys_of(table));
  EXPECT_TRUE(job.exists("experts.up"));
  EXPECT_FALSE(job.exists("ffn.gate"));
  EXPECT_FALSE(job.exists("ffn.up"));
}

TEST(QuantFinder, RanksThatDisagreeAreRefused) {
  Job const job(fused, local(2, 1));
  Table table;
  add_tiles(table, "d.0.fc1", {32, 64});
  Table const other{{"d.0.fc1.weight", {DType::bf16, {32, 64}}}};
  QuantFinder finder(job.model, *job.side);
  finder.look({{}, &whole_chunk}, job.names(&whole_chunk), find_in(table), "rank 0");
  EXPECT_EQ(
      refusal(
          [&] { finder.look(rank_at(1, 0), job.names(&whole_chunk), find_in(other), "rank 1"); },
          ErrorKind::source)
          .find(
              "rank 1: 'd.0.fc1.weight' is not quantised, and 'd.0.fc1.weight' of the same weight is quantised (tiles)."),
      0U);
}

/// A model whose gate, up and down are in tiles.
struct TiledJob : Job {
  TiledJob() : Job(family) {
    Table table = plain(*this);
    for (int layer = 0; layer < 3; ++layer) {
      add_tiles(table, fmt::format("l.{}.gate", layer), {32, 64});
      add_tiles(table, fmt::format("l.{}.up", layer), {32, 64});
      add_tiles(table, fmt::format("l.{}.down", layer), {64, 32});
    }
    find_and_apply(*this, table);
  }
};

TEST(QuantFinder, CutsInsideABlockAreRefusedOnTheOtherSide) {
  TiledJob const source;
  MapFile const map = parse_map_file(std::string(definitions) + fused, "m.toml");
  auto const layouts = [&](int tp) {
    Side const side(source.model, map, local(tp, 1));
    for (StoredName const& name : side.names(&whole_chunk))
      side.layout(name.entry, rank_at(tp - 1, 0));
  };
  layouts(1);
  layouts(2);
  EXPECT_EQ(
      refusal([&] { layouts(4); }, ErrorKind::usage),
      "job, tp = 4: 'ffn.gate.tiles.scale': a cut of axis 'inter' (size 32) at 8 falls inside a block of 16. It has 2 blocks: choose a size that "
      "divides 2 (1, 2), or set model.quant = \"dequantise-bf16\".");
}

TEST(QuantFinder, BlocksAlongAnotherAxisAreRefusedWhenTheyAreNeeded) {
  Job job(family);
  Table table = plain(job);
  for (int layer = 0; layer < 3; ++layer)
    add_packed(table, fmt::format("l.{}.down", layer), 64, 32);
  find_and_apply(job, table);
  std::string const turned =
      "[stored]\n\"d.{decoder=layer}.down.weight\" = \"down: inter hidden\"\n";
  MapFile const map = parse_map_file(definitions + turned, "m.toml");
  Side const side(job.model, map, {});
  std::string const sentence = refusal([&] { side.names(nullptr); }, ErrorKind::usage);
  EXPECT_NE(
      sentence.find(
          "'down.packed.values' would have blocks along hidden/2 here, and has them along inter/2 in the source. Quantised values "
          "cannot be stored like this: set model.quant = \"dequantise-bf16\", or keep the stored tensors as they are (model.map = \"none\") in a Hugging Face, DCP or HDF5 target."),
      std::string::npos)
      << sentence;
}

TEST(QuantFinder, AFusedTensorWhosePartsDifferIsRefused) {
  Job job(family);
  Table table = plain(job);
  for (int layer = 0; layer < 3; ++layer)
    add_tiles(table, fmt::format("l.{}.gate", layer), {32, 64});
  find_and_apply(job, table);
  MapFile const map = parse_map_file(std::string(definitions) + fused, "m.toml");
  Side const side(job.model, map, {});
  std::string const sentence = refusal([&] { side.names(nullptr); }, ErrorKind::usage);
  EXPECT_NE(sentence.find("'ffn.gate' is quantised (tiles), 'ffn.up' is not, and"),
            std::string::npos)
      << sentence;
}

}  // namespace
}  // namespace reshard::test
