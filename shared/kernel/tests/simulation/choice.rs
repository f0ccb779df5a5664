//! Where every decision of a schedule comes from: a seed, or the list of decisions of an earlier schedule.
//!
//! The list is what is shrunk. So 0 is always the mildest choice (no fault, the oldest first), and a list that has come to
//! its end goes on with zeros.

/// Decisions, as they are made.
#[derive(Debug)]
pub struct Choices {
    source: Source,
    made: Vec<u32>,
    calm: bool,
}

#[derive(Debug)]
enum Source {
    Seed(SplitMix),
    List(std::vec::IntoIter<u32>),
}

impl Choices {
    pub fn from_seed(seed: u64) -> Self {
        Self { source: Source::Seed(SplitMix(seed)), made: Vec::new(), calm: false }
    }

    pub fn from_list(list: Vec<u32>) -> Self {
        Self { source: Source::List(list.into_iter()), made: Vec::new(), calm: false }
    }

    /// From now on only the mildest.
    pub fn calm_down(&mut self) {
        self.calm = true;
    }

    pub fn is_calm(&self) -> bool {
        self.calm
    }

    /// A number below `n` (0 if there is none).
    pub fn below(&mut self, n: usize) -> usize {
        if self.calm || n <= 1 {
            return 0;
        }
        let n = u32::try_from(n).unwrap();
        let choice = match &mut self.source {
            Source::Seed(random) => random.below(n),
            Source::List(list) => list.next().unwrap_or(0).min(n - 1),
        };
        self.made.push(choice);
        choice as usize
    }

    /// Yes in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) >= 100 - percent
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// The number of one of `weights`.
    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (number, weight) in weights.iter().enumerate() {
            if left < *weight {
                return number;
            }
            left -= weight;
        }
        0
    }

    pub fn into_made(self) -> Vec<u32> {
        self.made
    }
}

/// Small, fast, and the same everywhere.
#[derive(Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        u32::try_from(((self.next() >> 32) * u64::from(n)) >> 32).unwrap()
    }
}

/// Makes a failing list of choices as short and as mild as it gets. `fails` runs a list and says what it made if it failed
/// in the same way.
pub fn shrink(mut list: Vec<u32>, mut tries: usize, fails: impl Fn(Vec<u32>) -> Option<Vec<u32>>) -> Vec<u32> {
    let mut attempt = |list: &mut Vec<u32>, candidate: Vec<u32>| {
        if tries == 0 || candidate == *list {
            return false;
        }
        tries -= 1;
        let simpler =
            fails(candidate).filter(|made| (made.len(), made.iter().sum::<u32>()) < (list.len(), list.iter().sum()));
        let found = simpler.is_some();
        if let Some(made) = simpler {
            *list = made;
        }
        found
    };
    loop {
        let before = list.clone();
        let mut size = list.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < list.len() {
                let end = (at + size).min(list.len());
                let without = [&list[..at], &list[end..]].concat();
                let zeroed = [&list[..at], &vec![0; end - at][..], &list[end..]].concat();
                if !attempt(&mut list, without) && !attempt(&mut list, zeroed) {
                    at += size;
                }
            }
            size /= 2;
        }
        for at in 0..list.len() {
            while at < list.len() && list[at] > 0 {
                let halved =
                    list.iter().enumerate().map(|(i, value)| if i == at { value / 2 } else { *value }).collect();
                if !attempt(&mut list, halved) {
                    break;
                }
            }
        }
        if list == before {
            return list;
        }
    }
}
