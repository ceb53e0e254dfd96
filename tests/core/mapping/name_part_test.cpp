#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "core/mapping/sides/side.hpp"
#include "core/mapping/sides/side_part.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard {
namespace {

std::string sentence_of(std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.sentence();
    return error.sentence();
  }
  return {};
}

// --- the part that digits leave out
// -------------------------------------------------------------------------------

std::optional<AxisPart> left_of(std::string const& digits, Index size, Index unit = 1) {
  LayoutExpr const expr = parse_layout("t: " + digits);
  std::vector<LayoutExpr::Digit> const all = expr.digits_of("t");
  return part_left(all, size, unit, [](std::string const& name) {
    return name == "n" ? std::optional<Index>(4) : std::nullopt;
  });
}

TEST(PartLeft, IsWhatTheShapeDoesNotHave) {
  struct Case {
    char const* digits;
    Index size;
    AxisPart left;
  };
  for (Case const& c : std::vector<Case>{{"x/2", 8, {2, 1}},
                                         {"x%2", 8, {8, 2}},
                                         {"x/n", 8, {4, 1}},
                                         {"x%n", 8, {8, 4}},
                                         {"x/4 x%2", 8, {4, 2}},
                                         {"x%2 x/4", 8, {4, 2}},
                                         {"x%4/2", 4, {2, 1}},
                                         {"x/8", 8, {8, 1}},
                                         {"x%3", 8, {9, 3}},
                                         {"x", 8, {1, 1}},
                                         {"x/1", 8, {1, 1}},
                                         {"x/4 x%4", 8, {1, 1}},
                                         {"x%8", 8, {1, 1}}})
    EXPECT_EQ(left_of(c.digits, c.size), std::optional<AxisPart>(c.left)) << c.digits;
  EXPECT_EQ(left_of("x/8", 8, 2), std::optional<AxisPart>(AxisPart{8, 2}))
      << "an axis that is counted in pairs";
  EXPECT_EQ(left_of("x/2", 8, 2), std::optional<AxisPart>(AxisPart{1, 1}));
}

TEST(PartLeft, IsUnknownWhereDigitsMakeNoSingleRest) {
  EXPECT_FALSE(left_of("x/2 x%4", 8)) << "overlap";
  EXPECT_FALSE(left_of("x%4/2", 8)) << "two parts";
  EXPECT_FALSE(left_of("x/m", 8)) << "no such size";
  EXPECT_FALSE(left_of("x/0", 8));
}

// --- names
// --------------------------------------------------------------------------------------------------------

/// One map over experts, cut as the options say.
struct SmallMap {
  SmallMap(std::string const& stored, std::map<std::string, Json> options, bool local = false,
           std::string const& more = "")
      : map(parse_map_file(
            "let = { L = 2, M = 0 }\naxes = { hidden = 3, layer = 2, expert = 6, inter = 4 }\noptions = { n = 2, m = 2 }\n"
            "tensors = { \"layer expert\" = [ \"up: inter hidden\", \"gate: inter hidden\" ], layer = [ \"norm: hidden\" ] }\n" +
                more + "[stored]\n" + stored,
            "m.toml")),
        model(map, map, {Json::object(), "facts", 0}),
        side(model, map,
             {local, test::MeshSizes{1, 1, 1, 2, 1}, std::move(options), {}, {}, "job, "}) {}

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (StoredName const& name : side.names(nullptr)) result.push_back(name.name);
    return result;
  }

  MapFile map;
  Model model;
  Side side;
};

constexpr char const* interleaved =
    "\"{layer}.fc1.weight{expert%n}\" = \"(expert/n inter/m (gate: inter%m | up: inter%m)) hidden\"\n\"{layer}.norm\" = \"norm: hidden\"\n";

using Lines = std::vector<std::string>;

TEST(NameParts, OneStoredTensorForEachValueOfThePart) {
  EXPECT_EQ(SmallMap(interleaved, {}).names(), (Lines{"0.fc1.weight0", "0.fc1.weight1", "0.norm",
                                                      "1.fc1.weight0", "1.fc1.weight1", "1.norm"}));
  EXPECT_EQ(SmallMap(interleaved, {{"n", Json(1)}}).names(),
            (Lines{"0.fc1.weight0", "0.norm", "1.fc1.weight0", "1.norm"}));
  EXPECT_EQ(SmallMap(interleaved, {{"n", Json(6)}}).names().size(), 14U);
  EXPECT_EQ(SmallMap("\"rank{expert/n}\" = \"up: layer (expert%n inter) hidden\"\n", {}).names(),
            (Lines{"rank0", "rank1", "rank2"}));
}

/// What an element of "weight{i}" is, from the definition: ranks one behind the other, and in each
/// the parts of gate and up.
std::string element_by_hand(Index n, Index m, Index layer, Index i, Index row, Index column) {
  Index const rows_of_rank = 2 * 4;
  Index const rank = row / rows_of_rank;
  Index const in_rank = row % rows_of_rank;
  Index const part = in_rank / (2 * m);
  Index const in_part = in_rank % (2 * m);
  return fmt::format("{} layer {} expert {} inter {} hidden {}", in_part < m ? "gate" : "up", layer,
                     rank * n + i, part * m + in_part % m, column);
}

/// The same from pieces: element text by offset.
std::map<Index, std::string> elements_of(Model const& model, std::vector<Piece> const& pieces) {
  std::map<Index, std::string> result;
  for (Piece const& piece : pieces) {
    std::vector<Index> at(piece.digits.size(), 0);
    for (bool more = true; more;) {
      Index offset = piece.offset;
      std::map<std::string, Index> index;
      for (std::size_t d = 0; d < at.size(); ++d) {
        PieceDigit const& digit = piece.digits[d];
        offset += at[d] * digit.stride;
        index[model.axes()[digit.axis].name] += (digit.first + at[d]) * digit.div;
      }
      std::string text = model.tensor(piece.tensor).name;
      for (char const* axis : {"layer", "expert", "inter", "hidden"})
        text += fmt::format(" {} {}", axis, index[axis]);
      EXPECT_TRUE(result.emplace(offset, text).second) << offset;
      more = false;
      for (std::size_t d = at.size(); d-- > 0 && !more;) {
        more = ++at[d] < piece.digits[d].count;
        if (!more) at[d] = 0;
      }
    }
  }
  return result;
}

TEST(NameParts, PiecesAreThoseOfADefinitionByHand) {
  for (Index const n : {1, 2, 3, 6})
    for (Index const m : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} experts and {} rows of a rank", n, m));
      SmallMap const at(interleaved, {{"n", Json(n)}, {"m", Json(m)}});
      std::vector<std::vector<Piece>> all(at.model.tensors().size());
      for (StoredName const& name : at.side.names(nullptr)) {
        std::vector<Piece> const pieces = at.side.pieces(name, {});
        for (Piece const& piece : pieces) all[index(piece.tensor)].push_back(piece);
        if (name.name.find("norm") != std::string::npos) continue;
        ASSERT_EQ(at.side.shape(name), (std::vector<Index>{6 / n * 8, 3}));
        Index const layer = name.name[0] - '0';
        Index const i = name.name.back() - '0';
        std::map<Index, std::string> const elements = elements_of(at.model, pieces);
        EXPECT_EQ(elements.size(), static_cast<std::size_t>(6 / n * 8 * 3));
        for (auto const& [offset, text] : elements)
          EXPECT_EQ(text, element_by_hand(n, m, layer, i, offset / 3, offset % 3)) << name.name;
      }
      for (std::size_t t = 0; t < all.size(); ++t) {
        auto const fault = tile(all[t], at.model.domain(at.model.tensors()[t]), at.model.axes());
        EXPECT_FALSE(fault) << at.model.tensors()[t].name.text() << ": " << fault->holders
                            << " hold " << fault->where;
      }
    }
}

TEST(NameParts, BoxesOfAStoredTensorAreThoseOfADefinitionByHand) {
  std::mt19937 random(7);
  SmallMap const at(interleaved, {{"n", Json(2)}, {"m", Json(2)}});
  for (StoredName const& name : at.side.names(nullptr)) {
    if (name.name.find("norm") != std::string::npos) continue;
    for (int trial = 0; trial < 40; ++trial) {
      Index const row = std::uniform_int_distribution<Index>(0, 23)(random);
      Index const past = std::uniform_int_distribution<Index>(row + 1, 24)(random);
      std::vector<Index> const begin{row, 1};
      std::vector<Index> const end{past, 3};
      auto const elements = elements_of(at.model, at.side.box_pieces(name, begin, end));
      ASSERT_EQ(elements.size(), static_cast<std::size_t>((past - row) * 2));
      for (auto const& [offset, text] : elements)
        EXPECT_EQ(text, element_by_hand(2, 2, name.name[0] - '0', name.name.back() - '0',
                                        row + offset / 2, 1 + offset % 2));
    }
  }
}

TEST(NameParts, ANameThatDoesNotCountTheRestIsRefused) {
  std::string const none =
      sentence_of([] { SmallMap("\"{layer}.w\" = \"up: (expert/n inter) hidden\"\n", {}); });
  EXPECT_NE(
      none.find(
          "the shape holds a part of axis 'expert' of 'up', and the name does not count the rest"),
      std::string::npos)
      << none;
  std::string const whole = sentence_of(
      [] { SmallMap("\"{layer}.w{expert}\" = \"up: (expert/n inter) hidden\"\n", {}).names(); });
  EXPECT_NE(
      whole.find(
          "so indices 0 and 2 are in one stored tensor, but their names are '0.w0' and '0.w2'"),
      std::string::npos)
      << whole;
  std::string const other = sentence_of(
      [] { SmallMap("\"{layer}.w{expert/n}\" = \"up: (expert/n inter) hidden\"\n", {}).names(); });
  EXPECT_NE(other.find("indices 0 and 2"), std::string::npos) << other;
}

TEST(NameParts, TensorsOfAnEntryMustAgreeOnThem) {
  std::string const text = sentence_of([] {
    SmallMap("\"{layer}.w{expert%n}\" = \"(up: expert/n inter | gate: expert/3 inter) hidden\"\n",
             {});
  });
  EXPECT_NE(text.find("another tensor of this entry has another part of it there"),
            std::string::npos)
      << text;
}

TEST(NameParts, LocalFilesHaveNone) {
  std::string const text = sentence_of([] { SmallMap(interleaved, {}, true); });
  EXPECT_NE(text.find("Megatron's formats have no names for the rest"), std::string::npos) << text;
}

TEST(MliteMap, CoversWhatTheFamilyHasForEveryRankCount) {
  MapFile const core = test::map_file("mcore");
  MapFile const family = test::map_file("qwen3_moe");
  MapFile const names = test::map_file("mlite_qwen3_moe");
  EXPECT_TRUE(names.axes.empty() && names.match_args.empty())
      << "it must not be found by a config or by args";
  for (test::SampleModel const& sample : test::sample_models()) {
    if (sample.family != "qwen3_moe" || sample.config.find("decoder_sparse_step")->dump() != "1")
      continue;
    Model by_family(family, core, {sample.config, "config.json", 0});
    Side const family_side(by_family, family, {});
    apply_family(by_family, family_side);
    for (TensorId const tensor : family_side.optional_tensors())
      by_family.set_exists(tensor, false);  // numbers of quantisers, which Megatron Lite lacks
    for (Index const ep : {1, 2, 4, 8})
      for (Index const etp : {1, 2, 4}) {
        SCOPED_TRACE(fmt::format("ep {} etp {}", ep, etp));
        Model model(family, core, {sample.config, "config.json", 0});
        SideOptions options;
        options.options = {{"rank_experts", Json(8 / ep)},
                           {"rank_inter", Json(16 / etp)},
                           {"vocab_padding", Json(78)}};
        Side const side(model, names, std::move(options));
        apply_family(model, side);
        std::vector<std::vector<Piece>> all(model.tensors().size());
        for (StoredName const& name : side.names(nullptr))
          for (Piece& piece : side.pieces(name, {}))
            all[index(piece.tensor)].push_back(std::move(piece));
        for (std::size_t t = 0; t < all.size(); ++t) {
          EXPECT_EQ(model.exists(TensorId(t)), by_family.exists(TensorId(t)))
              << model.tensors()[t].name.text();
          if (!model.exists(TensorId(t))) continue;
          auto const fault = tile(all[t], model.domain(model.tensors()[t]), model.axes());
          EXPECT_FALSE(fault) << model.tensors()[t].name.text() << ": " << fault->holders
                              << " hold " << fault->where;
        }
      }
  }
}

}  // namespace
}  // namespace reshard
