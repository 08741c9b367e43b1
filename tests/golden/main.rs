//! Translation, case by case: `golden/FOLDER/NAME.in.json` becomes `NAME.out.json`.

mod translate;
